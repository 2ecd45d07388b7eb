/* Runs a fuzz target on the files and folders of the command line, without a fuzzer: seeds and old findings are tests
 * of every build. */
#include <dirent.h>
#include <string.h>

#include "file.h"

static int runs;

static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return 1;
    static uint8_t bytes[1 << 22];
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    uint8_t *exact = malloc(n + !n); /* so that a sanitizer sees a read past the end */
    if (!exact) return 1;
    memcpy(exact, bytes, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    runs++;
    return 0;
}

static int replay_folder(const char *path) {
    DIR *d = opendir(path);
    int failed = 0;
    if (!d) return replay_file(path);
    for (struct dirent *e; (e = readdir(d));) {
        char name[4096];
        if (e->d_name[0] == '.' || snprintf(name, sizeof name, "%s/%s", path, e->d_name) >= (int)sizeof name) continue;
        failed |= replay_file(name);
    }
    closedir(d);
    return failed;
}

int main(int argc, char **argv) {
    int failed = 0;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) failed |= replay_folder(argv[i]);
    printf("%d inputs\n", runs);
    return failed || !runs;
}

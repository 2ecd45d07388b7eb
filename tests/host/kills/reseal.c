/* reseal META FROM TO: replaces the first FROM in a checkpoint's meta.json and makes its checksum right again, as a
 * program would that writes another kind of checkpoint. */
#include <io/checkpoint_meta.h>
#include <io/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    char *text = NULL, *changed = NULL, hash[CKPT_HASH_CHARS];
    uint64_t n = 0;
    moe_err err = {.size = sizeof err};
    if (argc != 4 || fs_load(argv[1], 1 << 20, &text, &n, &err)) return 2;
    char *at = strstr(text, argv[2]);
    if (!at || asprintf(&changed, "%.*s%s%s", (int)(at - text), text, argv[3], at + strlen(argv[2])) < 0) return 3;
    json_t *meta = json_loads(changed, 0, NULL);
    if (!meta || !ckpt_seal(meta, hash) || json_object_set_new(meta, "meta_xxh3_64", json_string(hash)) != 0) return 4;
    free(changed);
    changed = json_dumps(meta, 0);
    int bad = !changed || fs_save(argv[1], changed, strlen(changed), &err) != MOE_OK;
    free(changed);
    free(text);
    json_decref(meta);
    return bad;
}

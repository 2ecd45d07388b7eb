/* The loader: where it looks, what it refuses, and what it takes from a file. The probe runs the real program. */
#include <dlfcn.h>
#include <elf_check.h>
#include <loader.h>
#include <moe/plugin.h>
#include <probe.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check_lines.h"

#define TWO MOE_BUILD_DIR "/tests/host/front/plugins/two.so"
#define NO_ENTRY MOE_BUILD_DIR "/tests/host/front/plugins/no_entry.so"
#define PROGRAM MOE_BUILD_DIR "/moehost"

typedef struct fixture { /* a folder of folders a, b with router/ and dispatcher/ in them */
    char dir[32];
    err_list errs;
    loader *l;
} fixture;

static const char *path_of(char *buf, size_t bytes, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(buf, bytes, format, ap);
    va_end(ap);
    return buf;
}
#define PATH(...) path_of((char[512]){0}, 512, __VA_ARGS__)

static void copy_file(const char *from, const char *to, long most) {
    unlink(to); /* a new file: the old one may be mapped */
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    ck_assert_msg(in && out, "%s -> %s", from, to);
    for (int c; most != 0 && (c = fgetc(in)) != EOF; most--) fputc(c, out);
    fclose(in);
    ck_assert_int_eq(fclose(out), 0);
}

static void set_up(fixture *f) {
    static const char *const dirs[] = {"a", "a/router", "a/dispatcher", "b", "b/router"};
    *f = (fixture){.dir = "/tmp/moe-loader-XXXXXX"};
    umask(022);
    ck_assert_ptr_nonnull(mkdtemp(f->dir));
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        ck_assert_int_eq(mkdir(PATH("%s/%s", f->dir, dirs[i]), 0755), 0);
}

static void start(fixture *f, const char *plugin_path) {
    moe_err err;
    loader_cfg cfg = {.exe = PROGRAM, .plugin_path = plugin_path};
    ck_assert_msg(loader_create(&f->l, &cfg, &err) == MOE_OK, "%s", err.msg);
}

static void tear_down(fixture *f) {
    loader_destroy(f->l);
    err_list_clear(&f->errs);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", f->dir);
    ck_assert_int_eq(system(command), 0);
}

static bool find(fixture *f, const char *kind, const char *name, const char *device, loader_found *found) {
    loader_request q = {.kind = kind, .name = name, .device = device, .dir = f->dir, .where = "r.ini:1:1"};
    return loader_find(f->l, &q, found, &f->errs);
}

START_TEST(by_id_and_device) {
    fixture f;
    loader_found cpu, any, cuda;
    set_up(&f);
    copy_file(TWO, PATH("%s/a/router/two.so", f.dir), -1);
    copy_file(TWO, PATH("%s/a/router/three-cuda.so", f.dir), -1);
    start(&f, PATH("%s/a:", f.dir));
    ck_assert(find(&f, "router", "two", "cpu", &cpu)); /* made for cpu comes before any */
    ck_assert_str_eq(cpu.desc->device, "cpu");
    ck_assert(find(&f, "router", "two", "vendor.x", &any));
    ck_assert_str_eq(any.desc->device, "any");
    ck_assert(find(&f, "router", "three", "cuda", &cuda));
    ck_assert_ptr_nonnull(strstr(cuda.path, "three-cuda.so"));
    ck_assert_uint_eq(cpu.hash, cuda.hash); /* copies of one file */
    ck_assert_uint_ne(cpu.hash, 0);
    ck_assert(!find(&f, "dispatcher", "two", "cpu", &any)); /* an id means KIND/ID.so */
    check_one_line(&f.errs, "dispatcher", "a/dispatcher/two.so: absent");
    tear_down(&f);
}
END_TEST

START_TEST(not_found) {
    fixture f;
    loader_found found;
    set_up(&f);
    copy_file(TWO, PATH("%s/a/router/two.so", f.dir), -1);
    start(&f, PATH("%s/a:%s/b", f.dir, f.dir));
    ck_assert(!find(&f, "router", "tow", "cpu", &found));
    ck_assert_ptr_nonnull(strstr(f.errs.lines[0], "/a/router/tow.so: absent"));
    ck_assert_ptr_nonnull(strstr(f.errs.lines[0], "/b/router/tow.so: absent"));
    ck_assert_ptr_nonnull(strstr(f.errs.lines[0], "lib/moehost/plugins/router/tow.so: absent"));
    check_one_line(&f.errs, "tow", "r.ini:1:1: plugin router 'tow' for device cpu not found; did you mean 'two'?");
    copy_file(TWO, PATH("%s/b/router/three.so", f.dir), -1);
    ck_assert(!find(&f, "router", "three", "cpu", &found));
    check_one_line(&f.errs, "three", "b/router/three.so: holds no such id for this device");
    /* the working directory is no place */
    copy_file(TWO, PATH("%s/here.so", f.dir), -1);
    ck_assert_int_eq(chdir(f.dir), 0);
    ck_assert_int_eq(mkdir("router", 0755), 0);
    copy_file(TWO, "router/here.so", -1);
    ck_assert(!find(&f, "router", "here", "cpu", &found));
    check_one_line(&f.errs, "here", "not found");
    tear_down(&f);
}
END_TEST

START_TEST(by_path) {
    fixture f;
    loader_found found;
    set_up(&f);
    copy_file(TWO, PATH("%s/a/x.so", f.dir), -1);
    start(&f, NULL);
    ck_assert(find(&f, "dispatcher", PATH("%s/a/x.so", f.dir), "cpu", &found));
    ck_assert(find(&f, "dispatcher", "a/x.so", "cpu", &found)); /* from the recipe's folder */
    ck_assert_str_eq(found.path, PATH("%s/a/x.so", f.dir));
    ck_assert(find(&f, "router", "a/x.so", "cpu", &found));
    ck_assert_str_eq(found.desc->id, "two");
    ck_assert(!find(&f, "router", "a/x.so", NULL, &found)); /* three of them */
    check_one_line(&f.errs, "several", "ambiguous");
    ck_assert(find(&f, "router", "a/x.so#three", NULL, &found));
    ck_assert_str_eq(found.desc->id, "three");
    ck_assert(!find(&f, "router", "a/x.so#four", NULL, &found));
    check_one_line(&f.errs, "four", "holds no such id");
    ck_assert(!find(&f, "scheduler", "a/x.so", NULL, &found));
    check_one_line(&f.errs, "kind", "holds nothing of this kind");
    ck_assert(!find(&f, "router", "a/y.so", NULL, &found));
    check_one_line(&f.errs, "absent", "a/y.so: absent");
    ck_assert(!find(&f, "router", "a/router/", NULL, &found));
    check_one_line(&f.errs, "folder", "a directory, not a file");
    tear_down(&f);
}
END_TEST

/* Without the entry symbol: refused by name, a hundred times, and never mapped in this process. */
START_TEST(C115_no_entry_symbol) {
    fixture f;
    loader_found found;
    set_up(&f);
    start(&f, NULL);
    for (int i = 0; i < 100; i++) {
        ck_assert(!find(&f, "router", NO_ENTRY, NULL, &found));
        check_one_line(&f.errs, "symbol", "it does not export moe_plugin_entry_v0");
    }
    ck_assert_ptr_null(dlopen(NO_ENTRY, RTLD_NOW | RTLD_NOLOAD));
    tear_down(&f);
}
END_TEST

/* One id in two folders: refused with both paths; a path decides. One file seen twice is one file. */
START_TEST(C118_one_id_in_two_folders) {
    fixture f;
    loader_found found;
    set_up(&f);
    copy_file(TWO, PATH("%s/a/router/two.so", f.dir), -1);
    ck_assert_int_eq(symlink("../../a/router/two.so", PATH("%s/b/router/two.so", f.dir)), 0);
    start(&f, PATH("%s/a:%s/b:%s/./a", f.dir, f.dir, f.dir));
    ck_assert(find(&f, "router", "two", "cpu", &found));
    ck_assert_int_eq(unlink(PATH("%s/b/router/two.so", f.dir)), 0);
    copy_file(TWO, PATH("%s/b/router/two.so", f.dir), -1);
    ck_assert(!find(&f, "router", "two", "cpu", &found));
    ck_assert_ptr_nonnull(strstr(f.errs.lines[0], PATH("%s/a/router/two.so: holds router/two 1.0", f.dir)));
    ck_assert_ptr_nonnull(strstr(f.errs.lines[0], PATH("%s/b/router/two.so: holds router/two 1.0", f.dir)));
    check_one_line(&f.errs, "two", "ambiguous; name one by its path");
    ck_assert(find(&f, "router", "b/router/two.so", "cpu", &found));
    ck_assert_str_eq(found.path, PATH("%s/b/router/two.so", f.dir));
    /* a refused file in one folder is not passed over for a good one in another */
    copy_file(TWO, PATH("%s/a/router/two.so", f.dir), 2000);
    ck_assert(!find(&f, "router", "two", "cpu", &found));
    check_one_line(&f.errs, "refused", "a/router/two.so: truncated");
    tear_down(&f);
}
END_TEST

/* Larger and smaller tables and a later minor load; the copy says how far it reaches. */
START_TEST(C119_sizes_of_other_versions) {
    fixture f;
    loader_found found;
    set_up(&f);
    start(&f, NULL);
    ck_assert(find(&f, "router", TWO, "cpu", &found));
    const moe_router_v0 *router = found.vtable;
    ck_assert_uint_eq(router->size, sizeof *router);
    ck_assert(find(&f, "dispatcher", TWO, "cpu", &found));
    const moe_dispatcher_v0 *dispatcher = found.vtable;
    ck_assert(!MOE_REACH(dispatcher, moe_dispatcher_v0, extension) && !dispatcher->extension);
    ck_assert(MOE_REACH(dispatcher, moe_dispatcher_v0, unpack) && dispatcher->unpack);
    tear_down(&f);
}
END_TEST

/* A plugin that wipes its table after the load changes nothing for the host. */
START_TEST(C120_table_is_copied_once) {
    fixture f;
    loader_found found;
    void *self = NULL;
    moe_err err;
    set_up(&f);
    start(&f, NULL);
    ck_assert(find(&f, "router", TWO, "cpu", &found));
    const moe_router_v0 *router = found.vtable, before = *router;
    ck_assert_int_eq(router->create(&(moe_router_cfg){.size = sizeof(moe_router_cfg)}, NULL, &self, &err), MOE_OK);
    ck_assert_int_eq(memcmp(router, &before, sizeof before), 0);
    ck_assert_ptr_nonnull(router->route);
    ck_assert_uint_eq(((const moe_router_v0 *)found.desc->vtable)->size, 0); /* the plugin's own is wiped */
    tear_down(&f);
}
END_TEST

START_TEST(C121_one_file_two_kinds) {
    fixture f;
    loader_found router, dispatcher;
    set_up(&f);
    start(&f, NULL);
    ck_assert(find(&f, "router", TWO, "cpu", &router) && find(&f, "dispatcher", TWO, "cpu", &dispatcher));
    ck_assert_ptr_eq(router.path, dispatcher.path);
    tear_down(&f);
}
END_TEST

START_TEST(places_that_others_can_write) {
    fixture f;
    struct stat st;
    char why[512];
    set_up(&f);
    const char *path = PATH("%s/a/x.so", f.dir);
    copy_file(TWO, path, -1);
    ck_assert(elf_check(path, &st, why, sizeof why));
    ck_assert_int_eq(chmod(path, 0646), 0);
    ck_assert(!elf_check(path, &st, why, sizeof why));
    ck_assert_str_eq(why, "the file is writable by others (mode 0646)");
    ck_assert_int_eq(chmod(path, 0644) | chmod(PATH("%s/a", f.dir), 0777), 0);
    ck_assert(!elf_check(path, &st, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "/a is writable by others (mode 0777)"));
    /* a link elsewhere does not make the place safe, nor does a safe target make the link's */
    ck_assert_int_eq(symlink("../a/x.so", PATH("%s/b/x.so", f.dir)), 0);
    ck_assert(!elf_check(PATH("%s/b/x.so", f.dir), &st, why, sizeof why));
    ck_assert_int_eq(chmod(PATH("%s/a", f.dir), 01777), 0);
    ck_assert(elf_check(path, &st, why, sizeof why));
    ck_assert_int_eq(chmod(PATH("%s/b", f.dir), 0777), 0);
    ck_assert(!elf_check(PATH("%s/b/x.so", f.dir), &st, why, sizeof why));
    tear_down(&f);
}
END_TEST

/* Every truncation is seen before the dynamic loader would; so are changed header bytes. */
START_TEST(files_that_are_not_whole) {
    fixture f;
    struct stat st;
    char why[512];
    set_up(&f);
    const char *path = PATH("%s/a/x.so", f.dir);
    ck_assert_int_eq(stat(TWO, &st), 0);
    long whole = (long)st.st_size;
    for (long n = 0; n < whole; n += n < 200 ? 9 : whole / 37) {
        copy_file(TWO, path, n);
        ck_assert_msg(!elf_check(path, &st, why, sizeof why), "%ld of %ld bytes", n, whole);
    }
    static const struct {
        long at;
        int byte;
        const char *words;
    } rows[] = {{0, 'X', "not an ELF file"},      {4, 1, "ELF class is 1, the host's is 2"},
                {5, 2, "ELF byte order is 2"},    {18, 40, "ELF machine is 40"},
                {16, 2, "ELF type is 2"},         {39, 0x7f, "truncated"},
                {54, 3, "headers are malformed"}, {32, 0xff, "truncated"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        copy_file(TWO, path, -1);
        FILE *file = fopen(path, "r+");
        ck_assert(file && fseek(file, rows[i].at, SEEK_SET) == 0 && fputc(rows[i].byte, file) != EOF);
        if (rows[i].at == 32) fputc(0xff, file), fputc(0xff, file), fputc(0xff, file);
        ck_assert_int_eq(fclose(file), 0);
        ck_assert_msg(!elf_check(path, &st, why, sizeof why), "byte %ld", rows[i].at);
        ck_assert_msg(strstr(why, rows[i].words) != NULL, "byte %ld: %s", rows[i].at, why);
    }
    copy_file(TWO, path, -1);
    ck_assert(elf_check(path, &st, why, sizeof why));
    tear_down(&f);
}
END_TEST

START_TEST(probe_results) {
    char why[2048];
    ck_assert_msg(probe_file(PROGRAM, TWO, PROBE_DEFAULT_MS, why, sizeof why), "%s", why);
    ck_assert(!probe_file(PROGRAM, "/nowhere/x.so", PROBE_DEFAULT_MS, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "/nowhere/x.so"));
    ck_assert(!probe_file("/nowhere/moehost", TWO, PROBE_DEFAULT_MS, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "does not start"));
    ck_assert(!probe_file("/bin/true", TWO, PROBE_DEFAULT_MS, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "the probe ended (exit code 0) before it was loaded"));
}
END_TEST

START_TEST(search_path) {
    moe_err err;
    loader *l = NULL;
    loader_cfg cfg = {.exe = PROGRAM, .plugin_path = "/tmp:rel/ative"};
    ck_assert_int_eq(loader_create(&l, &cfg, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "MOEHOST_PLUGIN_PATH: 'rel/ative' is not an absolute path");
    cfg.plugin_path = ":/tmp::/tmp:";
    ck_assert_int_eq(loader_create(&l, &cfg, &err), MOE_OK);
    ck_assert_str_eq(loader_folder(l, 0), "/tmp");
    ck_assert_ptr_nonnull(strstr(loader_folder(l, 1), "/lib/moehost/plugins"));
    ck_assert_ptr_nonnull(loader_folder(l, 2));
    ck_assert_ptr_null(loader_folder(l, 3));
    loader_destroy(l);
}
END_TEST

static void count(void *ctx, const loader_found *found) {
    ck_assert(found->desc && found->vtable && found->path);
    ++*(int *)ctx;
}

START_TEST(scan) {
    fixture f;
    int n = 0;
    set_up(&f);
    copy_file(TWO, PATH("%s/a/router/two.so", f.dir), -1);
    copy_file(TWO, PATH("%s/a/router/two-cpu.so", f.dir), 1000);
    copy_file(TWO, PATH("%s/a/router/twofold.so", f.dir), 1000);
    copy_file(TWO, PATH("%s/a/router/notes.txt", f.dir), 1000);
    start(&f, PATH("%s/a", f.dir));
    loader_scan(f.l, "router", "two", &f.errs);
    check_one_line(&f.errs, "cut", "a/router/two-cpu.so: plugin refused: truncated");
    loader_each(f.l, count, &n);
    ck_assert_int_eq(n, 4); /* all descriptors of the file */
    tear_down(&f);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("loader");
    tcase_add_test(tests, by_id_and_device);
    tcase_add_test(tests, not_found);
    tcase_add_test(tests, by_path);
    tcase_add_test(tests, C115_no_entry_symbol);
    tcase_add_test(tests, C118_one_id_in_two_folders);
    tcase_add_test(tests, C119_sizes_of_other_versions);
    tcase_add_test(tests, C120_table_is_copied_once);
    tcase_add_test(tests, C121_one_file_two_kinds);
    tcase_add_test(tests, places_that_others_can_write);
    tcase_add_test(tests, files_that_are_not_whole);
    tcase_add_test(tests, probe_results);
    tcase_add_test(tests, search_path);
    tcase_add_test(tests, scan);
    return run_case(tests);
}

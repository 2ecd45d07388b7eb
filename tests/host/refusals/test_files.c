/* Plugin files that are no whole shared objects, or lie where others can change them. Each row finds plugin.so in its
 * own folder. */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "runner.h"

#define TOPK MOE_BUILD_DIR "/plugins/router/topk.so"

static void plugin_path(char path[PATH_BYTES], const char *dir) {
    file_path(path, "%s/plugin.so", dir);
}

/* ---- truncated copies ---- */
static size_t whole_size(void) {
    struct stat st;
    ck_assert(stat(TOPK, &st) == 0);
    return (size_t)st.st_size;
}
static void copy_part(const char *dir, size_t bytes) {
    char path[PATH_BYTES];
    plugin_path(path, dir);
    file_copy(TOPK, path, bytes);
}
static void copy_whole(const char *dir) {
    copy_part(dir, SIZE_MAX);
}
static void copy_nothing(const char *dir) {
    copy_part(dir, 0);
}
static void copy_1(const char *dir) {
    copy_part(dir, 1);
}
static void copy_63(const char *dir) {
    copy_part(dir, sizeof(Elf64_Ehdr) - 1);
}
static void copy_64(const char *dir) {
    copy_part(dir, sizeof(Elf64_Ehdr));
}
static void copy_300(const char *dir) {
    copy_part(dir, 300);
}
static void copy_page(const char *dir) {
    copy_part(dir, 4096);
}
static void copy_half(const char *dir) {
    copy_part(dir, whole_size() / 2);
}
static void copy_all_but_one(const char *dir) {
    copy_part(dir, whole_size() - 1);
}

#define FILE_ROW(name_, prepare_, ...)                                                           \
    {                                                                                            \
        name_, .prepare = prepare_, .put = {"router: plugin = ./plugin.so"}, .code = 3, .say = { \
            "[router] plugin: ",                                                                 \
            "$DIR/plugin.so: ",                                                                  \
            __VA_ARGS__                                                                          \
        }                                                                                        \
    }

START_TEST(truncated_copies) {
    static const row rows[] = {
        {"the whole", .prepare = copy_whole, .put = {"router: plugin = ./plugin.so"}},
        FILE_ROW("nothing", copy_nothing, "empty"),
        FILE_ROW("one byte", copy_1, "not an ELF file", "1 bytes"),
        FILE_ROW("a header but its last byte", copy_63, "not an ELF file", "63 bytes"),
        FILE_ROW("the header", copy_64, "truncated", "64 bytes"),
        FILE_ROW("some program headers", copy_300, "truncated", "300 bytes"),
        FILE_ROW("a page", copy_page, "truncated", "4096 bytes"),
        FILE_ROW("half", copy_half, "truncated"),
        FILE_ROW("all but a byte", copy_all_but_one, "truncated"),
    };
    RUN(rows);
}
END_TEST

/* ---- other files ---- */
static void make_text(const char *dir) {
    static const char text[] = "INPUT(/usr/lib/libm.so.6) /* a linker script, and longer than an ELF header is */\n";
    char path[PATH_BYTES];
    plugin_path(path, dir);
    file_write(path, text, sizeof text - 1);
}
static void make_folder(const char *dir) {
    char path[PATH_BYTES];
    plugin_path(path, dir);
    file_make_dir(path, 0755);
}
static void make_pipe(const char *dir) {
    char path[PATH_BYTES];
    plugin_path(path, dir);
    ck_assert(mkfifo(path, 0644) == 0);
}
static void make_dangling(const char *dir) {
    char path[PATH_BYTES];
    plugin_path(path, dir);
    ck_assert(symlink("nowhere.so", path) == 0);
}

/* topk.so with one byte of its header changed, or 16 bits. */
static void patch(const char *dir, size_t offset, const void *bytes, size_t n) {
    char path[PATH_BYTES];
    plugin_path(path, dir);
    copy_whole(dir);
    int mode = chmod(path, 0644);
    FILE *f = mode == 0 ? fopen(path, "r+b") : NULL;
    ck_assert(f && fseek(f, (long)offset, SEEK_SET) == 0 && fwrite(bytes, n, 1, f) == 1 && fclose(f) == 0);
}
static void make_32_bits(const char *dir) {
    patch(dir, EI_CLASS, &(uint8_t){ELFCLASS32}, 1);
}
static void make_other_order(const char *dir) {
    patch(dir, EI_DATA, &(uint8_t){ELFDATA2MSB}, 1);
}
static void make_other_machine(const char *dir) {
    patch(dir, offsetof(Elf64_Ehdr, e_machine), &(uint16_t){EM_S390}, 2);
}
static void make_object(const char *dir) {
    patch(dir, offsetof(Elf64_Ehdr, e_type), &(uint16_t){ET_REL}, 2);
}
static void make_no_segments(const char *dir) {
    patch(dir, offsetof(Elf64_Ehdr, e_phnum), &(uint16_t){0}, 2);
}
static void make_far_segments(const char *dir) {
    patch(dir, offsetof(Elf64_Ehdr, e_phoff), &(uint64_t){UINT64_MAX - 8}, 8);
}

START_TEST(files_that_are_no_library) {
    static const row rows[] = {
        FILE_ROW("text", make_text, "not an ELF file"),
        FILE_ROW("a folder", make_folder, "a directory"),
        FILE_ROW("a pipe", make_pipe, "not a regular file"),
        FILE_ROW("a link to nothing", make_dangling, "absent"),
        FILE_ROW("32 bits", make_32_bits, "ELF class is 1", "2"),
        FILE_ROW("the other byte order", make_other_order, "byte order"),
        FILE_ROW("another machine", make_other_machine, "machine is 22"),
        FILE_ROW("an object file", make_object, "ELF type is 1", "3"),
        FILE_ROW("no segments", make_no_segments, "program headers"),
        FILE_ROW("segments past the end of numbers", make_far_segments, "truncated"),
        {"a program", .put = {"router: plugin = $BUILD/moehost"}, .code = 3, .say = {"$BUILD/moehost: "}},
    };
    RUN(rows);
}
END_TEST

/* ---- places that others can write ---- */
static void make_writable(const char *dir) {
    char path[PATH_BYTES];
    copy_whole(dir);
    plugin_path(path, dir);
    ck_assert(chmod(path, 0666) == 0);
}
static void copy_to_folder(const char *dir, const char *name, mode_t mode) {
    char path[PATH_BYTES];
    file_path(path, "%s/%s", dir, name);
    file_make_dir(path, 0755);
    file_path(path, "%s/%s/plugin.so", dir, name);
    file_copy(TOPK, path, SIZE_MAX);
    file_path(path, "%s/%s", dir, name);
    ck_assert(chmod(path, mode) == 0);
}
static void make_open_folder(const char *dir) {
    copy_to_folder(dir, "open", 0777);
}
static void make_sticky_folder(const char *dir) {
    copy_to_folder(dir, "open", 01777);
}
static void make_link_to_open(const char *dir) {
    char path[PATH_BYTES];
    copy_to_folder(dir, "open", 0777);
    plugin_path(path, dir);
    ck_assert(symlink("open/plugin.so", path) == 0);
}
static void make_link(const char *dir) {
    char path[PATH_BYTES];
    copy_to_folder(dir, "closed", 0755);
    plugin_path(path, dir);
    ck_assert(symlink("closed/plugin.so", path) == 0);
}

START_TEST(places_that_others_can_write) {
    static const row rows[] = {
        FILE_ROW("the file", make_writable, "writable by others", "0666"),
        {"its folder", .prepare = make_open_folder, .put = {"router: plugin = open/plugin.so"}, .code = 3,
         .say = {"$DIR/open", "writable by others", "0777"}},
        {"the folder that a link points to", .prepare = make_link_to_open, .put = {"router: plugin = ./plugin.so"},
         .code = 3, .say = {"$DIR/open", "writable by others"}},
        {"a sticky folder is fine", .prepare = make_sticky_folder, .put = {"router: plugin = open/plugin.so"}},
        {"a link is fine", .prepare = make_link, .put = {"router: plugin = ./plugin.so"}},
    };
    RUN(rows);
}
END_TEST

TCase *file_tests(void) {
    TCase *tc = tcase_create("files");
    tcase_add_test(tc, truncated_copies);
    tcase_add_test(tc, files_that_are_no_library);
    tcase_add_test(tc, places_that_others_can_write);
    return tc;
}

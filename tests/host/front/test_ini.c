/* INI text: what is read, what is refused and where, and that inih's silent cuts do not happen. */
#include <ini.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check_lines.h"

typedef struct seen {
    char text[16384]; /* "[section]" and "section.key=value@line:key_column:value_column", one a line */
    size_t n;
} seen;

static void keep(void *ctx, const ini_event *e) {
    seen *s = ctx;
    int n = e->key ? snprintf(s->text + s->n, sizeof s->text - s->n, "%s.%s=%s@%d:%d:%d\n", e->section, e->key,
                              e->value, e->line, e->key_column, e->value_column)
                   : snprintf(s->text + s->n, sizeof s->text - s->n, "[%s]\n", e->section);
    s->n += (size_t)n;
    ck_assert(s->n < sizeof s->text);
}

static bool read_text(const char *text, size_t bytes, seen *s, err_list *errs) {
    *s = (seen){.n = 0};
    return ini_read_text("a.ini", text, bytes, keep, s, errs);
}

START_TEST(good_text) {
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"[a]\nk=v\n", "[a]\na.k=v@2:1:3\n"},
        {"[a]\r\nk = v\r\n", "[a]\na.k=v@2:1:5\n"},
        {"\xef\xbb\xbf[a]\nk=v", "[a]\na.k=v@2:1:3\n"},
        {"  [ a ]  ; why\n\t k\t=  v w  # note\n", "[a]\na.k=v w@2:3:8\n"},
        {"; c\n# c\n\n[a]\n[b]\n", "[a]\n[b]\n"},
        {"[a]\nk=\nl=;all comment\nm =  # note\n", "[a]\na.k=@2:1:3\na.l=@3:1:3\na.m=@4:1:4\n"},
        {"[a]\nk=a;b#c\n", "[a]\na.k=a;b#c@2:1:3\n"},
        {"[a]\nk=a=b:c\n", "[a]\na.k=a=b:c@2:1:3\n"},
        {"[a]\nk=[x]\n", "[a]\na.k=[x]@2:1:3\n"},
        {"[router:0-2,5]\nk=1\n", "[router:0-2,5]\nrouter:0-2,5.k=1@2:1:3\n"},
        {"[a]\nk=d\xc3\xa9j\xc3\xa0\n", "[a]\na.k=d\xc3\xa9j\xc3\xa0@2:1:3\n"},
        /* leading blanks are no continuation of the line above */
        {"[a]\nk=1\n  l=2\n [b]\nm=3\n", "[a]\na.k=1@2:1:3\na.l=2@3:3:5\n[b]\nb.m=3@5:1:3\n"},
        {"", ""},
        {"\n\n", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        seen s;
        err_list errs = {.n = 0};
        bool ok = read_text(rows[i].text, strlen(rows[i].text), &s, &errs);
        err_list_print(&errs, stderr);
        ck_assert_msg(ok, "row %zu", i);
        ck_assert_str_eq(s.text, rows[i].want);
    }
}
END_TEST

#define LONG_KEY "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk" /* 50 bytes */
static const struct {
    const char *text;
    size_t bytes; /* 0 = strlen */
    const char *words;
} bad_rows[] = {
    {"[a]\nk\n", 0, "a.ini:2:1: 'k' is neither [section] nor key = value"},
    {"[a]\n  k v # c\n", 0, "a.ini:2:3: 'k v' is neither"},
    {"[a]\nk: v\n", 0, "a.ini:2:1: 'k: v' is neither [section] nor key = value; the sign is '='"},
    {"[a]\nk ;=v\n", 0, "a.ini:2:1: 'k' is neither"},
    {"[a\nk=v\n", 0, "a.ini:1:1: a ']' is missing"},
    {"[a ; ]\nk=v\n", 0, "a.ini:1:1: a ']' is missing"},
    {"[]\nk=v\n", 0, "a.ini:1:1: the section has no name"},
    {"[ ]\n", 0, "a.ini:1:1: the section has no name"},
    {"[a.b]\n", 0, "a.ini:1:3: a section name holds"},
    {"[" LONG_KEY "]\n", 0, "a.ini:1:2: a section name of 50 bytes; the most is 49"},
    {"[a]\n=v\n", 0, "a.ini:2:1: a key is missing before '='"},
    {"[a]\n" LONG_KEY "=v\n", 0, "a.ini:2:1: a key of 50 bytes; the most is 49"},
    {"[a]\nk k=v\n", 0, "a.ini:2:2: a key holds"},
    {"[a]\nk.k=v\n", 0, "a.ini:2:2: a key holds"},
    {"k=v\n", 0, "a.ini:1:1: 'k' stands before the first [section]"},
    {"[a]\nk=\"v\"\n", 0, "a.ini:2:3: the value holds a quote at the start"},
    {"[a]\nk='v'\n", 0, "a.ini:2:3: the value holds a quote at the start"},
    {"[a]\nk=a\0b\n", 10, "a.ini:2:4: a NUL byte"},
    {"[a]\nk=a\x01\n", 0, "a.ini:2:4: a control character"},
    {"[a]\nk=a\rb\n", 0, "a.ini:2:4: a carriage return"},
    {"[a]\nk=\xc3(\n", 0, "a.ini:2:3: invalid UTF-8"},
    {"[a]\nk=\xc0\xaf\n", 0, "a.ini:2:3: invalid UTF-8"},
    {"[a]\nk=\xed\xa0\x80\n", 0, "a.ini:2:3: invalid UTF-8"},
    {"[a]\nk=\xf5\x80\x80\x80\n", 0, "a.ini:2:3: invalid UTF-8"},
    {"[a]\nk=\xe2\x82", 0, "a.ini:2:3: invalid UTF-8"},
    {"[a]\n; \xff\n", 0, "a.ini:2:3: invalid UTF-8"},
    {"[a]\n\xef\xbb\xbfk=1\n", 0, "a.ini:2:1: a key holds"},
    {"\xff\xfe[\0a\0]\0", 8, "a.ini:1:1: the file is UTF-16"},
};

START_TEST(bad_text) {
    seen s;
    err_list errs = {.n = 0};
    size_t bytes = bad_rows[_i].bytes ? bad_rows[_i].bytes : strlen(bad_rows[_i].text);
    ck_assert(!read_text(bad_rows[_i].text, bytes, &s, &errs));
    check_one_line(&errs, bad_rows[_i].text, bad_rows[_i].words);
}
END_TEST

/* Words behind a section's bracket are an error; a comment there is fine. */
START_TEST(C113_text_after_bracket) {
    seen s;
    err_list errs = {.n = 0};
    ck_assert(!read_text("[moe] topk=2\n", 13, &s, &errs));
    check_one_line(&errs, "text", "a.ini:1:7: text after ']': 'topk=2'");
    ck_assert(!read_text("[moe]]\n", 7, &s, &errs));
    check_one_line(&errs, "bracket", "a.ini:1:6: text after ']': ']'");
    ck_assert(read_text("[moe] ; topk=2\n[b] # x\n", 23, &s, &errs));
    ck_assert_str_eq(s.text, "[moe]\n[b]\n");
}
END_TEST

/* Values of every length come back whole, whatever stands where inih's lines would end. */
START_TEST(long_values) {
    static char text[INI_LINE_MAX + 64], value[INI_LINE_MAX];
    static const char pattern[] = "path/to x;y#z=[a]:b ,";
    static const int lengths[] = {1,   118, 119, 120, 121, 122, 194, 195,  196,
                                  197, 198, 199, 200, 239, 240, 241, 1000, 4000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int shift = 0; shift < 3; shift++) {
            int n = lengths[i];
            for (int k = 0; k < n; k++) value[k] = pattern[(k + shift) % (int)(sizeof pattern - 1)];
            value[n - 1] = '.'; /* no blank at the end */
            value[n] = '\0';
            seen s;
            err_list errs = {.n = 0};
            int bytes = snprintf(text, sizeof text, "[a]\nk = %s\nl=1\n", value);
            ck_assert_msg(read_text(text, (size_t)bytes, &s, &errs), "%s", errs.n ? errs.lines[0] : "");
            char want[INI_LINE_MAX + 64];
            snprintf(want, sizeof want, "[a]\na.k=%s@2:1:5\na.l=1@3:1:3\n", value);
            ck_assert_str_eq(s.text, want);
        }
}
END_TEST

START_TEST(limits) {
    char *text = malloc(INI_FILE_MAX + 64);
    seen s;
    err_list errs = {.n = 0};
    memcpy(text, "[a]\nk=", 6);
    memset(text + 6, 'x', 2 * INI_LINE_MAX);
    ck_assert(!read_text(text, 6 + INI_LINE_MAX - 1, &s, &errs));
    check_one_line(&errs, "a line of 4097 bytes", "a.ini:2:1: a line of 4097 bytes; the most is 4096");
    ck_assert(!read_text(text, 6 + INI_LINE_MAX - 2, &s, &errs));
    check_one_line(&errs, "a value beyond what can be written again", "a.ini:2:3: the value holds more bytes");
    memset(text + 6, ' ', 500);
    text[6] = text[506] = 'x';
    ck_assert(!read_text(text, 507, &s, &errs));
    check_one_line(&errs, "a run of blanks", "the value holds a long run of blanks");
    free(text);
}
END_TEST

/* Every fault of a file is reported in one pass, in order; keys of a broken section are not reported again. */
START_TEST(all_errors) {
    static const char text[] = "k=1\n[a\nx=1\ny\n[b]\n=1\nz=\"q\"\n[c] d\n";
    static const char *const words[] = {
        "a.ini:1:1:", "a.ini:2:1:", "a.ini:4:1:", "a.ini:6:1:", "a.ini:7:3:", "a.ini:8:5:"};
    seen s;
    err_list errs = {.n = 0};
    ck_assert(!read_text(text, sizeof text - 1, &s, &errs));
    if (errs.n != 6) err_list_print(&errs, stderr);
    ck_assert_uint_eq(errs.n, 6);
    for (size_t i = 0; i < 6; i++) ck_assert_msg(strncmp(errs.lines[i], words[i], 10) == 0, "%s", errs.lines[i]);
    err_list_clear(&errs);
}
END_TEST

START_TEST(error_list_is_bounded) {
    char text[1024] = "[a]\n";
    for (int i = 0; i < 300; i++) strcat(text, "x\n"); /* each with its own line number */
    seen s;
    err_list errs = {.n = 0};
    ck_assert(!read_text(text, strlen(text), &s, &errs));
    ck_assert_uint_eq(errs.n, ERR_LIST_MAX);
    ck_assert_uint_eq(err_list_count(&errs), 300);
    err_list_clear(&errs);
    err_list_add(&errs, "%s", "the same\tfault");
    err_list_add(&errs, "%s", "the same\tfault");
    check_one_line(&errs, "twice", "the same?fault");
}
END_TEST

static void write_file(const char *path, const char *text, size_t bytes) {
    FILE *f = fopen(path, "w");
    ck_assert(f != NULL && fwrite(text, 1, bytes, f) == bytes && fclose(f) == 0);
}

START_TEST(files) {
    char dir[] = "/tmp/moe-ini-XXXXXX", path[64];
    seen s = {.n = 0};
    err_list errs = {.n = 0};
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/a.ini", dir);
    ck_assert(!ini_read_file(path, keep, &s, &errs));
    check_one_line(&errs, "absent", "No such file");
    ck_assert(!ini_read_file(dir, keep, &s, &errs));
    check_one_line(&errs, "directory", "a directory, not a file");
    write_file(path, "", 0);
    ck_assert(!ini_read_file(path, keep, &s, &errs));
    check_one_line(&errs, "empty", "the file is empty");
    write_file(path, "[a]\nk=1\n", 8);
    ck_assert(ini_read_file(path, keep, &s, &errs));
    ck_assert_str_eq(s.text, "[a]\na.k=1@2:1:3\n");
    char *large = calloc(1, INI_FILE_MAX + 1);
    memset(large, '\n', INI_FILE_MAX + 1);
    write_file(path, large, INI_FILE_MAX + 1);
    ck_assert(!ini_read_file(path, keep, &s, &errs));
    check_one_line(&errs, "large", "larger than 1 MiB");
    write_file(path, large, INI_FILE_MAX);
    ck_assert(ini_read_file(path, keep, &s, &errs));
    free(large);
    unlink(path);
    ck_assert(mkfifo(path, 0600) == 0); /* must not wait for a writer */
    ck_assert(!ini_read_file(path, keep, &s, &errs));
    check_one_line(&errs, "pipe", "not a regular file");
    unlink(path);
    rmdir(dir);
}
END_TEST

/* Every prefix and every single-byte change of a text is read or refused, and never more than that. */
START_TEST(mutations) {
    static const char text[] = "\xef\xbb\xbf[run] ; c\nname = a b # x\n\n[router:0-2]\nk=\xc3\xa9;\r\n";
    static const char bytes[] = {'\0', '\n', '[', ']', '=', ';', ' ', '\x80', '\xff', '"', 'a'};
    char changed[sizeof text];
    for (size_t n = 0; n < sizeof text; n++) {
        seen s;
        err_list errs = {.n = 0};
        bool ok = read_text(text, n, &s, &errs);
        ck_assert(ok == (err_list_count(&errs) == 0));
        err_list_clear(&errs);
        for (size_t k = 0; k < sizeof bytes; k++) {
            memcpy(changed, text, sizeof text);
            changed[n] = bytes[k];
            ok = read_text(changed, sizeof text - 1, &s, &errs);
            ck_assert(ok == (err_list_count(&errs) == 0));
            for (size_t i = 0; i < errs.n; i++) ck_assert_ptr_null(strstr(errs.lines[i], "differently"));
            err_list_clear(&errs);
        }
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("ini");
    tcase_add_test(tests, good_text);
    tcase_add_loop_test(tests, bad_text, 0, (int)(sizeof bad_rows / sizeof bad_rows[0]));
    tcase_add_test(tests, C113_text_after_bracket);
    tcase_add_test(tests, long_values);
    tcase_add_test(tests, limits);
    tcase_add_test(tests, all_errors);
    tcase_add_test(tests, error_list_is_bounded);
    tcase_add_test(tests, files);
    tcase_add_test(tests, mutations);
    return run_case(tests);
}

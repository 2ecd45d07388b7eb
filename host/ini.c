/* Reads INI text for the recipe. Each raw line is checked here, then handed to inih in the one form that inih cannot
 * misread: no comment, no blanks around '=', and a long value in pieces (Debian's inih cuts lines at 200 bytes, but
 * calls again with the same name for a continuation line, so the pieces are joined in the handler). */
#include "ini.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 120 }; /* bytes of a value a line to inih; with key and '=' well below its 200 */

typedef struct ini_reading {
    const char *name, *text; /* what is left to read */
    size_t bytes;
    int line; /* of the line given last */
    ini_sink sink;
    void *ctx;
    err_list *errs;
    bool seen_section;
    bool section_ok; /* the keys below a broken section line are not reported again */
    char section[INI_NAME_MAX + 1], key[INI_NAME_MAX + 1];
    char value[INI_LINE_MAX + 1]; /* of the line in work, as read here */
    const char *rest;             /* the part of it that inih has not got */
    char joined[INI_LINE_MAX + 1];
    size_t n_joined;
    int key_column, value_column;
} ini_reading;

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}
static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
static bool is_section(char c) {
    return is_name(c) || c == ':' || c == ',';
}

static bool all_of(const char *s, bool (*ok)(char)) {
    size_t n = 0;
    while (s[n] && ok(s[n])) n++;
    return n > 0 && s[n] == '\0' && n <= INI_NAME_MAX;
}
bool ini_is_key(const char *key) {
    return all_of(key, is_name);
}
bool ini_is_section(const char *section) {
    return all_of(section, is_section);
}

/* ---- what a line may hold ---- */
/* Bytes of the UTF-8 character at s (n left), 0 when it is not one (RFC 3629: no overlong form, no surrogate). */
static size_t utf8_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return 1;
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

static const char *text_fault(const char *s, size_t n, size_t *at) {
    size_t length = 0;
    for (size_t i = 0; i < n; i += length) {
        *at = i;
        if (s[i] == '\0') return "a NUL byte";
        if (s[i] == '\r') return "a carriage return that ends no line";
        if (((unsigned char)s[i] < 0x20 && s[i] != '\t') || s[i] == 0x7f) return "a control character";
        length = utf8_length((const unsigned char *)s + i, n - i);
        if (length == 0) return "invalid UTF-8";
    }
    return NULL;
}

/* Where the comment that ends a line begins; n when there is none. */
static size_t comment_start(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((s[i] == ';' || s[i] == '#') && (i == 0 || is_blank(s[i - 1]))) return i;
    return n;
}

const char *ini_value_fault(const char *value, size_t *at) {
    size_t n = strlen(value);
    const char *fault = text_fault(value, n, at);
    if (fault) return fault;
    *at = comment_start(value, n);
    if (*at < n) return "a comment sign after a blank";
    *at = 0;
    if (n > INI_LINE_MAX - INI_NAME_MAX - 8) return "more bytes than a line may have";
    if (n > 0 && (is_blank(value[0]) || is_blank(value[n - 1]))) return "a blank at an end";
    if (value[0] == '"' || value[0] == '\'') return "a quote at the start; values are written without quotes";
    for (size_t run = 0, i = 0; i < n; i++) { /* inih trims blanks at the ends of a piece */
        run = is_blank(value[i]) || value[i] == ';' || value[i] == '#' ? run + 1 : 0;
        *at = i;
        if (run >= PIECE / 2) return "a long run of blanks or comment signs";
    }
    return NULL;
}

__attribute__((format(printf, 3, 4))) static void fail(ini_reading *r, size_t column, const char *format, ...) {
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    err_list_add(r->errs, "%s:%d:%zu: %s", r->name, r->line, column, text);
}

/* ---- one line ---- */
/* "[name]" at line[start]; n: end without comment and blanks. True when inih shall see it. */
static bool take_section(ini_reading *r, const char *line, size_t start, size_t n) {
    r->seen_section = true;
    r->section_ok = false;
    const char *close = memchr(line + start, ']', n - start);
    if (!close) return fail(r, start + 1, "a ']' is missing after '['"), false;
    size_t first = start + 1, last = (size_t)(close - line);
    if (last + 1 < n) {
        size_t after = last + 1;
        while (is_blank(line[after])) after++;
        return fail(r, after + 1, "text after ']': '%.*s'", (int)(n - after > 40 ? 40 : n - after), line + after),
               false;
    }
    while (first < last && is_blank(line[first])) first++;
    while (last > first && is_blank(line[last - 1])) last--;
    if (first == last) return fail(r, start + 1, "the section has no name"), false;
    if (last - first > INI_NAME_MAX)
        return fail(r, first + 1, "a section name of %zu bytes; the most is %d", last - first, INI_NAME_MAX), false;
    for (size_t i = first; i < last; i++)
        if (!is_section(line[i])) return fail(r, i + 1, "a section name holds letters, digits and _ - : ,"), false;
    memcpy(r->section, line + first, last - first);
    r->section[last - first] = '\0';
    r->section_ok = true;
    r->sink(r->ctx, &(ini_event){.section = r->section, .line = r->line, .key_column = (int)first + 1});
    return true;
}

/* "key = value" at line[start]; n: end of the line. True when inih shall see it. */
static bool take_pair(ini_reading *r, const char *line, size_t start, size_t n) {
    size_t end = comment_start(line, n);
    const char *equals = memchr(line + start, '=', end - start);
    if (!equals) {
        while (end > start && is_blank(line[end - 1])) end--;
        return fail(r, start + 1, "'%.*s' is neither [section] nor key = value%s",
                    (int)(end - start > 40 ? 40 : end - start), line + start,
                    memchr(line + start, ':', end - start) ? "; the sign is '='" : ""),
               false;
    }
    size_t key_end = (size_t)(equals - line), from = key_end + 1;
    while (key_end > start && is_blank(line[key_end - 1])) key_end--;
    if (key_end == start) return fail(r, start + 1, "a key is missing before '='"), false;
    if (key_end - start > INI_NAME_MAX)
        return fail(r, start + 1, "a key of %zu bytes; the most is %d", key_end - start, INI_NAME_MAX), false;
    for (size_t i = start; i < key_end; i++)
        if (!is_name(line[i])) return fail(r, i + 1, "a key holds letters, digits, _ and -"), false;
    end = from + comment_start(line + from, n - from); /* "key =;x": a value that is all comment */
    while (end > from && is_blank(line[end - 1])) end--;
    while (from < end && is_blank(line[from])) from++;
    if (!r->seen_section)
        return fail(r, start + 1, "'%.*s' stands before the first [section]", (int)(key_end - start), line + start),
               false;
    if (!r->section_ok) return false;
    memcpy(r->value, line + from, end - from);
    r->value[end - from] = '\0';
    size_t at = 0;
    const char *fault = ini_value_fault(r->value, &at);
    if (fault) return fail(r, from + at + 1, "the value holds %s", fault), false;
    memcpy(r->key, line + start, key_end - start);
    r->key[key_end - start] = '\0';
    r->key_column = (int)start + 1;
    r->value_column = (int)from + 1;
    return true;
}

/* Checks a raw line of n bytes. Returns what inih shall see: 0 nothing, '[' a section, '=' a pair. */
static int take_line(ini_reading *r, const char *line, size_t n) {
    if (n > 0 && line[n - 1] == '\r') n--;
    if (n > INI_LINE_MAX) return fail(r, 1, "a line of %zu bytes; the most is %d", n, INI_LINE_MAX), 0;
    size_t at = 0, start = 0;
    const char *fault = text_fault(line, n, &at);
    if (fault) return fail(r, at + 1, "%s", fault), 0;
    while (start < n && is_blank(line[start])) start++;
    if (start == n || line[start] == ';' || line[start] == '#') return 0;
    if (line[start] != '[') return take_pair(r, line, start, n) ? '=' : 0;
    size_t end = comment_start(line, n);
    while (end > start && is_blank(line[end - 1])) end--;
    return take_section(r, line, start, end) ? '[' : 0;
}

/* ---- between inih and us ---- */
/* A piece of the value that neither begins nor ends with what inih trims or takes for a comment. */
static size_t piece_length(const char *rest) {
    size_t n = strlen(rest);
    if (n <= PIECE) return n;
    for (n = PIECE; n > 1; n--)
        if (!strchr(" \t;#", rest[n - 1]) && !strchr(" \t;#", rest[n])) break;
    return n;
}

/* inih asks for a line: the next piece of a value, or the next line of the text in canonical form. */
static char *give_line(char *out, int room, void *stream) {
    ini_reading *r = stream;
    if (r->rest && *r->rest) {
        size_t n = piece_length(r->rest);
        snprintf(out, (size_t)room, " %.*s", (int)n, r->rest);
        r->rest += n;
        return out;
    }
    r->rest = NULL;
    if (r->bytes == 0) return NULL;
    const char *end = memchr(r->text, '\n', r->bytes);
    size_t n = end ? (size_t)(end - r->text) : r->bytes, used = end ? n + 1 : n;
    const char *line = r->text;
    r->text += used;
    r->bytes -= used;
    r->line++;
    int form = take_line(r, line, n);
    if (form == '=') {
        size_t piece = piece_length(r->value);
        snprintf(out, (size_t)room, "%s=%.*s", r->key, (int)piece, r->value);
        r->rest = r->value + piece;
        r->n_joined = 0;
    } else if (form == '[') {
        snprintf(out, (size_t)room, "[%s]", r->section);
    } else {
        snprintf(out, (size_t)room, ";");
    }
    return out;
}

/* inih hands a piece; the last one completes the value, which must be what was read here. */
static int take_piece(void *user, const char *section, const char *name, const char *piece) {
    ini_reading *r = user;
    size_t n = strlen(piece);
    if (r->n_joined + n > INI_LINE_MAX) n = INI_LINE_MAX - r->n_joined;
    memcpy(r->joined + r->n_joined, piece, n);
    r->n_joined += n;
    r->joined[r->n_joined] = '\0';
    if (*r->rest) return 1;
    if (strcmp(section, r->section) != 0 || strcmp(name, r->key) != 0 || strcmp(r->joined, r->value) != 0) {
        fail(r, (size_t)r->key_column, "the INI library read [%.50s] %.50s differently", section, name);
        return 1;
    }
    r->sink(r->ctx, &(ini_event){.section = r->section,
                                 .key = r->key,
                                 .value = r->joined,
                                 .line = r->line,
                                 .key_column = r->key_column,
                                 .value_column = r->value_column});
    return 1;
}

bool ini_read_text(const char *name, const char *text, size_t bytes, ini_sink sink, void *ctx, err_list *errs) {
    size_t before = err_list_count(errs);
    if (bytes >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0)) {
        err_list_add(errs, "%s:1:1: the file is UTF-16; save it as UTF-8", name);
        return false;
    }
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, bytes -= 3;
    ini_reading *r = calloc(1, sizeof *r);
    if (!r) {
        err_list_add(errs, "%s: out of memory", name);
        return false;
    }
    *r = (ini_reading){.name = name, .text = text, .bytes = bytes, .sink = sink, .ctx = ctx, .errs = errs};
    int status = ini_parse_stream(give_line, r, take_piece, r);
    if (status != 0 && err_list_count(errs) == before)
        err_list_add(errs, "%s:%d:1: the INI library refused a line (its status %d)", name, r->line, status);
    free(r);
    return err_list_count(errs) == before;
}

static char *read_all(int fd, size_t *bytes, const char **why) {
    char *text = malloc(INI_FILE_MAX + 1);
    *bytes = 0;
    if (!text) *why = "out of memory";
    while (text && *bytes <= INI_FILE_MAX) {
        ssize_t n = read(fd, text + *bytes, INI_FILE_MAX + 1 - *bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) *why = strerror(errno);
        if (n <= 0) break;
        *bytes += (size_t)n;
    }
    return text;
}

bool ini_read_file(const char *path, ini_sink sink, void *ctx, err_list *errs) {
    struct stat st;
    const char *why = NULL;
    char *text = NULL;
    size_t bytes = 0;
    bool ok = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a named pipe must not wait for a writer */
    if (fd < 0 || fstat(fd, &st) != 0)
        why = strerror(errno);
    else if (!S_ISREG(st.st_mode))
        why = S_ISDIR(st.st_mode) ? "a directory, not a file" : "not a regular file";
    else
        text = read_all(fd, &bytes, &why);
    if (!why && bytes > INI_FILE_MAX) why = "larger than 1 MiB";
    if (!why && bytes == 0) why = "the file is empty";
    if (why)
        err_list_add(errs, "%s: %s", path, why);
    else
        ok = ini_read_text(path, text, bytes, sink, ctx, errs);
    free(text);
    if (fd >= 0) close(fd);
    return ok;
}

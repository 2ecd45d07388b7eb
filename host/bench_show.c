/* Numbers as text. */
#include "bench_show.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *plural(int64_t n) {
    return n == 1 ? "" : "s";
}

/* Digits after the point, so that small numbers show some and large ones none. */
static int digits(double value) {
    return value < 10 ? 3 : value < 1000 ? 1 : 0;
}

void bench_show(const bench_result *r, FILE *to) {
    fprintf(to, "%s, %u thread%s (%s): medians of %" PRId64 " run%s of %" PRId64 " step%s\n", r->recipe, r->threads,
            plural(r->threads), r->device, r->runs, plural(r->runs), r->steps, plural(r->steps));
    for (int i = 0; i < r->table.n; i++) {
        const bench_row *row = &r->table.row[i];
        if (isnan(row->value)) continue;
        fprintf(to, "  %-24s %10.*f %s", row->name, digits(row->value), row->value, row->unit);
        if (!isnan(row->fraction))
            fprintf(to, "%*s %5.1f%% of %.*f", (int)(9 - strlen(row->unit)), "", 100 * row->fraction, digits(row->peak),
                    row->peak);
        fputc('\n', to);
    }
    fputc('\n', to);
}

static void put_json_string(const char *text, FILE *to) {
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', to);
        if ((unsigned char)*text < ' ')
            fprintf(to, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, to);
    }
    fputc('"', to);
}

void bench_show_json(const bench_result *r, FILE *to) {
    for (int i = 0; i < r->table.n; i++) {
        const bench_row *row = &r->table.row[i];
        if (isnan(row->value)) continue;
        fprintf(to, "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", row->name, row->value, row->unit);
        if (!isnan(row->fraction)) fprintf(to, ",\"peak\":%.6g,\"fraction\":%.4f", row->peak, row->fraction);
        fputs(",\"recipe\":", to);
        put_json_string(r->recipe, to);
        fprintf(to, ",\"threads\":%u}\n", r->threads);
    }
}

/* ---- summary ---- */
/* What a column takes of a table: the fraction of a row as %, or its value where that is % itself. */
static const struct {
    const char *title, *row;
} columns[] = {{"step", "step"},           {"+optimizer", "step_with_optimizer"}, {"experts", "experts"},
               {"attention", "attention"}, {"overhead", "moe.overhead"},          {"vs first", "experts.vs_first"}};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static double percent(const bench_table *t, const char *name) {
    const bench_row *row = bench_rows_find(t, name);
    if (!row) return (double)NAN;
    return strcmp(row->unit, "%") == 0 ? row->value : 100 * row->fraction;
}

void bench_show_summary(const bench_result *results, size_t n, FILE *to) {
    size_t width = strlen("recipe");
    for (size_t i = 0; i < n; i++)
        if (strlen(results[i].recipe) > width) width = strlen(results[i].recipe);
    fprintf(to, "%-*s  threads", (int)width, "recipe");
    for (int c = 0; c < COLUMNS; c++) fprintf(to, "  %10s", columns[c].title);
    fputc('\n', to);
    for (size_t i = 0; i < n; i++) {
        fprintf(to, "%-*s  %7u", (int)width, results[i].recipe, results[i].threads);
        for (int c = 0; c < COLUMNS; c++) {
            double value = percent(&results[i].table, columns[c].row);
            if (isnan(value))
                fprintf(to, "  %10s", "-");
            else
                fprintf(to, "  %9.1f%%", value);
        }
        fputc('\n', to);
    }
}

/* The yardstick of `moehost bench dispatch`: the same rows of the same routing, moved as most programs do it - copied
 * once a choice in order of ranks, MPI_Alltoallv, sorted by expert - beside a memcpy of the rows that land, by the same
 * processes at once, in the same run. Prints a line as moehost bench --json does. Arguments: tokens hidden top-k
 * experts tries (defaults of moehost bench dispatch). Rows are FP32. */
#include <moe/random.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct yardstick {
    int ranks, rank;
    int64_t tokens, hidden, top_k, experts, tries;
    int32_t *ids;                              /* [tokens, top_k] */
    float *x, *packed, *landed, *rows, *plain; /* [tokens, h]; sent; as it comes; in expert order; what memcpy reads */
    int *sent, *sent_at, *got, *got_at;        /* [ranks] elements */
    int64_t *slot, *row;                       /* [sent rows] slot of a row; [landing rows] its place in expert order */
    int64_t n_sent, n_landed;
} yardstick;

static int die(const char *why) {
    fprintf(stderr, "bench_mpi_alltoallv: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
}

/* Large pages where the system gives them, as moehost's device has. */
static void *get(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, (size_t)2 << 20, bytes + 64) != 0) die("out of memory");
    madvise(p, bytes + 64, MADV_HUGEPAGE);
    memset(p, 1, bytes + 64); /* its pages */
    return p;
}

/* Deals k experts a token from shuffled decks, as moehost bench dispatch does. */
static void deal(const yardstick *y) {
    const moe_random_key key = moe_random_key_make(1, MOE_RANDOM_DATA, "bench.dispatch");
    int32_t *deck = get((size_t)y->experts * sizeof *deck);
    uint32_t left = 0;
    uint64_t drawn = (uint64_t)y->rank << 40;
    for (int64_t t = 0; t < y->tokens; t++) {
        if (left < y->top_k) {
            for (int32_t e = 0; e < y->experts; e++) deck[e] = e;
            left = (uint32_t)y->experts;
        }
        for (int64_t j = 0; j < y->top_k; j++) {
            const uint32_t i = moe_random_words(key, drawn++, 0).v[0] % left;
            y->ids[t * y->top_k + j] = deck[i];
            deck[i] = deck[--left];
        }
    }
    free(deck);
}

/* Slots by rank, then by number; counts of each rank; rows of expert order for what comes. */
static void lay_out(yardstick *y) {
    const int64_t slots = y->tokens * y->top_k, groups = y->experts / y->ranks;
    int64_t *all = get((size_t)(y->ranks * slots) * sizeof *all), *mine = get((size_t)slots * sizeof *mine), n = 0;
    y->slot = get((size_t)slots * sizeof *y->slot);
    for (int r = 0; r < y->ranks; r++) {
        y->sent_at[r] = (int)(n * y->hidden);
        for (int64_t i = 0; i < slots; i++)
            if (y->ids[i] / groups == r) y->slot[n++] = i;
        y->sent[r] = (int)(n * y->hidden) - y->sent_at[r];
    }
    y->n_sent = n;
    MPI_Alltoall(y->sent, 1, MPI_INT, y->got, 1, MPI_INT, MPI_COMM_WORLD);
    for (int64_t i = 0; i < n; i++) mine[i] = y->ids[y->slot[i]];
    MPI_Allgather(mine, (int)slots, MPI_INT64_T, all, (int)slots, MPI_INT64_T, MPI_COMM_WORLD);
    y->n_landed = 0;
    for (int r = 0; r < y->ranks; r++) {
        y->got_at[r] = (int)(y->n_landed * y->hidden);
        y->n_landed += y->got[r] / y->hidden;
    }
    y->row = get((size_t)y->n_landed * sizeof *y->row);
    int64_t row = 0;
    for (int64_t e = y->rank * groups; e < (y->rank + 1) * groups; e++) {
        int64_t at = 0; /* of what comes */
        for (int r = 0; r < y->ranks; r++)
            for (int64_t i = 0; i < slots; i++) {
                if (all[r * slots + i] / groups != y->rank) continue;
                if (all[r * slots + i] == e) y->row[at] = row++;
                at++;
            }
    }
    free(all);
    free(mine);
}

static void move_rows(const yardstick *y) {
    const int64_t h = y->hidden;
    const size_t bytes = (size_t)h * sizeof(float);
    for (int64_t i = 0; i < y->n_sent; i++) memcpy(y->packed + i * h, y->x + y->slot[i] / y->top_k * h, bytes);
    MPI_Alltoallv(y->packed, y->sent, y->sent_at, MPI_FLOAT, y->landed, y->got, y->got_at, MPI_FLOAT, MPI_COMM_WORLD);
    for (int64_t i = 0; i < y->n_landed; i++) memcpy(y->rows + y->row[i] * h, y->landed + i * h, bytes);
}

static void copy_rows(const yardstick *y) {
    memcpy(y->rows, y->plain, (size_t)(y->n_landed * y->hidden) * sizeof(float));
}

/* Seconds from the first rank's start to the last one's end; the best. */
static double best_of(const yardstick *y, void (*fn)(const yardstick *y), double best) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime(), end, first, last;
    fn(y);
    end = MPI_Wtime();
    MPI_Allreduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return best > 0 && best < last - first ? best : last - first;
}

static void open_memory(yardstick *y) {
    const size_t h = (size_t)y->hidden * sizeof(float), slots = (size_t)(y->tokens * y->top_k);
    int *all = get((size_t)y->ranks * 4 * sizeof *all);
    y->sent = all;
    y->sent_at = all + y->ranks;
    y->got = all + 2 * y->ranks;
    y->got_at = all + 3 * y->ranks;
    y->ids = get(slots * sizeof *y->ids);
    deal(y);
    lay_out(y);
    y->x = get((size_t)y->tokens * h);
    y->packed = get(slots * h);
    y->landed = get((size_t)y->n_landed * h);
    y->rows = get((size_t)y->n_landed * h);
    y->plain = get((size_t)y->n_landed * h);
}

static int64_t argument(int argc, char **argv, int i, int64_t absent) {
    return argc > i ? strtoll(argv[i], NULL, 10) : absent;
}

int main(int argc, char **argv) {
    yardstick y = {.tokens = argument(argc, argv, 1, 1024),
                   .hidden = argument(argc, argv, 2, 1024),
                   .top_k = argument(argc, argv, 3, 8),
                   .experts = argument(argc, argv, 4, 32),
                   .tries = argument(argc, argv, 5, 15)};
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &y.ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &y.rank);
    if (y.tokens < 1 || y.hidden < 1 || y.top_k < 1 || y.experts < y.top_k || y.experts % y.ranks ||
        y.tokens * y.top_k > INT32_MAX / y.hidden)
        return die("want tokens, hidden, top-k >= 1, experts >= top-k and a multiple of the ranks");
    open_memory(&y);
    double copy = 0, move = 0, rows = (double)y.n_landed, all = 0;
    for (int64_t i = 0; i < y.tries; i++) {
        copy = best_of(&y, copy_rows, copy);
        move = best_of(&y, move_rows, move);
    }
    MPI_Allreduce(&rows, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (y.rank == 0)
        printf(
            "{\"name\":\"mpi_alltoallv.dispatch\",\"value\":%.6g,\"unit\":\"Mrow/s\",\"peak\":%.6g,\"fraction\":%.4f,"
            "\"ranks\":%d,\"tokens\":%lld,\"hidden\":%lld,\"top_k\":%lld,\"experts\":%lld}\n",
            1e-6 * all / move, 1e-6 * all / copy, copy / move, y.ranks, (long long)y.tokens, (long long)y.hidden,
            (long long)y.top_k, (long long)y.experts);
    MPI_Finalize();
    return 0;
}

/* Prints GFLOP/s of moe.linear/0 per compute thread beside one large dnnl_sgemm on one thread, measured in the same
 * run: the shapes of a small MoE model, dense and grouped. Arguments: threads (1). A program, not a test. */
#include <dnnl.h>
#include <time.h>

#include "bench_run.h"
#include "linear_case.h"

extern void omp_set_num_threads(int n) __attribute__((weak));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The best of a few; the machine may be shared. */
static double measure_peak(void) {
    enum { N = 2048 };
    float *a = malloc(N * N * 4), *b = malloc(N * N * 4), *y = malloc(N * N * 4);
    double best = 0;
    for (int i = 0; i < N * N; i++) a[i] = b[i] = (float)(i % 7) - 3.0f;
    if (omp_set_num_threads) omp_set_num_threads(1);
    for (int i = 0; i < 4; i++) {
        double t = now();
        dnnl_sgemm('N', 'T', N, N, N, 1.0f, a, N, b, N, 0.0f, y, N);
        t = now() - t;
        if (2.0 * N * N * N / t > best) best = 2.0 * N * N * N / t;
    }
    free(a);
    free(b);
    free(y);
    return best * 1e-9;
}

static double measure(device_open *c, const linear_case *z) {
    linear_data d;
    moe_err err = {.size = sizeof err};
    int64_t rows = z->groups ? z->offsets[z->groups] : z->m;
    double best = 0, flops = 2.0 * (double)rows * (double)z->n * (double)z->k;
    linear_make(c, z, &d, 1);
    for (int i = 0; i < 7; i++) {
        double t = now();
        if (linear_run(c, z, &d, &err) != MOE_OK) printf("%s\n", err.msg);
        t = now() - t;
        if (flops / t > best) best = flops / t;
    }
    linear_drop(c, &d);
    return best * 1e-9;
}

START_TEST(measure_linear) {
    static const int64_t shapes[][4] = {/* rows, n, k, groups */
                                        {2048, 768, 256, 0}, {2048, 256, 768, 0}, {512, 512, 192, 0},
                                        {4096, 512, 192, 8}, {4096, 512, 512, 8}, {4096, 192, 512, 8}};
    static const char *const roles[] = {"fprop", "dgrad", "wgrad"};
    const int threads = _i;
    double peak = measure_peak();
    device_open c;
    device_open_start(&c, threads);
    printf("peak of one thread: %.0f GFLOP/s\n", peak);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int32_t role = MOE_FPROP; role <= MOE_WGRAD; role++) {
                linear_case z = {.role = role, .m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2], .fractions = 1};
                z.groups = (uint32_t)shapes[i][3];
                for (uint32_t g = 0; g < z.groups; g++) { /* uneven: half to one and a half of the mean */
                    z.counts[g] = z.m / z.groups / 2 + (int64_t)g * (z.m / z.groups) / (z.groups - 1);
                    z.offsets[g + 1] = z.offsets[g] + z.counts[g];
                }
                if (z.groups) z.m = z.offsets[z.groups];
                z.dtype = bf16 ? MOE_BF16 : MOE_F32;
                z.out_dtype = role == MOE_WGRAD ? MOE_F32 : z.dtype;
                double got = measure(&c, &z) / threads;
                printf("%-5s %s rows %5lld n %4lld k %4lld groups %u: %5.0f GFLOP/s a thread, %3.0f %%\n", roles[role],
                       bf16 ? "BF16" : "F32 ", (long long)z.m, (long long)z.n, (long long)z.k, z.groups, got,
                       100.0 * got / peak);
            }
    device_open_stop(&c);
}
END_TEST

int main(int argc, char **argv) {
    return bench_run(measure_linear, argc > 1 ? atoi(argv[1]) : 1);
}

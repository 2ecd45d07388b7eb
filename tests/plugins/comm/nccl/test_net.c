/* comm/nccl's start over sockets: ranks meet, whatever else connects; who does not fit is named to all; abort, leaving
 * and the end of a process are heard; nothing waits longer than it may. And what launchers say (environment.c). */
#include <fcntl.h>

#include "net_case.h"

/* ---- meeting ---- */
typedef struct gather_job {
    net_rank *r;
    uint32_t bytes;
    moe_status status;
    moe_err err;
    char all[NET_RANKS * 64];
} gather_job;
static void *gather_main(void *arg) {
    gather_job *j = arg;
    char own[64];
    memset(own, (int)(j->r->e.rank + 65), sizeof own);
    j->err.size = sizeof j->err;
    j->status = net_all_gather(j->r->n, own, j->bytes, j->all, &j->err);
    return NULL;
}
/* bytes [n] of each rank */
static void gather_all(net_rank *ranks, uint32_t n, gather_job *jobs, const uint32_t *bytes) {
    pthread_t threads[NET_RANKS];
    for (uint32_t r = 0; r < n; r++) {
        jobs[r] = (gather_job){.r = &ranks[r], .bytes = bytes[r]};
        pthread_create(&threads[r], NULL, gather_main, &jobs[r]);
    }
    for (uint32_t r = 0; r < n; r++) pthread_join(threads[r], NULL);
}
static void expect_gathered(net_rank *ranks, uint32_t n) {
    gather_job jobs[NET_RANKS];
    uint32_t bytes[NET_RANKS];
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t r = 0; r < n; r++) bytes[r] = round * 3;
        gather_all(ranks, n, jobs, bytes);
        for (uint32_t r = 0; r < n; r++) {
            ck_assert_msg(jobs[r].status == MOE_OK, "rank %u: %s", r, jobs[r].err.msg);
            for (uint32_t i = 0; i < n * round * 3; i++) ck_assert_int_eq(jobs[r].all[i], (char)(65 + i / (round * 3)));
        }
    }
}

/* _i: ranks; in every other case without an address, as processes of one job */
START_TEST(ranks_meet_and_gather) {
    net_rank ranks[NET_RANKS];
    const uint32_t n = (uint32_t)_i / 2 + 1;
    net_prepare(ranks, n, net_free_port(), 20);
    for (uint32_t r = 0; r < n && _i % 2; r++) {
        ranks[r].e.address[0] = 0;
        snprintf(ranks[r].e.job, sizeof ranks[r].e.job, "test %d", (int)getpid());
    }
    net_meet_all(ranks, n);
    expect_gathered(ranks, n);
    net_close_all(ranks, n);
    for (uint32_t r = 0; r < n; r++) ck_assert_uint_eq(ranks[r].n_ended, 0);
}
END_TEST

/* Each rank gathers and closes at once, so that good-byes follow close on the answer. */
static void *gather_and_close(void *arg) {
    gather_main(arg);
    net_close(((gather_job *)arg)->r->n);
    return NULL;
}

START_TEST(a_good_bye_does_not_overtake_the_last_answer) {
    net_rank ranks[3];
    gather_job jobs[3];
    const uint16_t port = net_free_port();
    for (int again = 0; again < 60; again++) {
        net_prepare(ranks, 3, port, 20);
        net_meet_all(ranks, 3);
        for (uint32_t r = 0; r < 3; r++) {
            jobs[r] = (gather_job){.r = &ranks[r]};
            pthread_create(&ranks[r].thread, NULL, gather_and_close, &jobs[r]);
        }
        net_join(ranks, 3);
        for (uint32_t r = 0; r < 3; r++) ck_assert_msg(jobs[r].status == MOE_OK, "rank %u: %s", r, jobs[r].err.msg);
    }
}
END_TEST

START_TEST(ranks_meet_again_at_the_same_port) {
    net_rank ranks[3];
    const uint16_t port = net_free_port();
    for (int again = 0; again < 10; again++) {
        net_prepare(ranks, 3, port, 20);
        net_meet_all(ranks, 3);
        net_close_all(ranks, 3);
    }
}
END_TEST

/* ---- strangers ---- */
/* Says something, or nothing, and stays or goes. */
static int stranger(uint16_t port, int kind) {
    net_head head = {.magic = NET_MAGIC + 1, .type = NET_HELLO, .bytes = sizeof(net_hello)};
    const char *text = "GET / HTTP/1.0\r\n\r\n and much more than any hello of ours has in it";
    const int fd = net_dial(port);
    ck_assert_int_ge(fd, 0);
    switch (kind) {
        case 0:
            send(fd, text, strlen(text), MSG_NOSIGNAL);
            break;
        case 1:
            send(fd, &head, sizeof head, MSG_NOSIGNAL); /* another magic */
            break;
        case 2:
            head.magic = NET_MAGIC;
            head.bytes = UINT64_MAX; /* a hello of another size */
            send(fd, &head, sizeof head, MSG_NOSIGNAL);
            break;
        case 3:
            send(fd, text, 3, MSG_NOSIGNAL);
            close(fd); /* early */
            return -1;
        default:
            break; /* silent */
    }
    return fd;
}

START_TEST(strangers_keep_nobody_out_and_nobody_waiting) {
    enum { STRANGERS = 25 };
    net_rank ranks[3];
    int fds[STRANGERS];
    const uint16_t port = net_free_port();
    net_prepare(ranks, 3, port, 20);
    const double begin = net_now();
    net_begin(&ranks[0]);
    for (int i = 0; i < STRANGERS; i++) fds[i] = stranger(port, i % 5);
    net_begin(&ranks[1]);
    net_begin(&ranks[2]);
    net_join(ranks, 3);
    ck_assert_double_lt(net_now() - begin, 4);
    for (uint32_t r = 0; r < 3; r++) ck_assert_msg(ranks[r].status == MOE_OK, "rank %u: %s", r, ranks[r].err.msg);
    expect_gathered(ranks, 3);
    net_close_all(ranks, 3);
    for (int i = 0; i < STRANGERS; i++)
        if (fds[i] >= 0) close(fds[i]);
}
END_TEST

/* A rank whose hello comes byte by byte is let in; one that never ends is not waited for beyond rank 0's time. */
static int say_slowly(uint16_t port, uint32_t rank, uint32_t world, size_t bytes) {
    struct {
        net_head head;
        net_hello hello;
    } said = {{.magic = NET_MAGIC, .type = NET_HELLO, .from = rank, .bytes = sizeof(net_hello)},
              {.version = NET_VERSION, .world = world}};
    const int fd = net_dial(port);
    for (size_t i = 0; i < bytes && i < sizeof said; i++) {
        send(fd, (const char *)&said + i, 1, MSG_NOSIGNAL);
        usleep(5000);
    }
    return fd;
}

START_TEST(a_slow_rank_is_let_in) {
    net_rank first;
    net_head head = {0};
    const uint16_t port = net_free_port();
    net_prepare(&first, 1, port, 20);
    first.e.world = 2;
    net_begin(&first);
    const int fd = say_slowly(port, 1, 2, SIZE_MAX);
    net_join(&first, 1);
    ck_assert_msg(first.status == MOE_OK, "%s", first.err.msg);
    ck_assert(net_receive(fd, &head, sizeof head) && head.type == NET_WELCOME);
    close(fd); /* without good-bye */
    ck_assert_str_eq(net_wait_end(&first), "rank 1 has ended: its process has closed the connection");
    net_close(first.n);
}
END_TEST

START_TEST(a_rank_that_never_says_all_is_missing) {
    net_rank first;
    const uint16_t port = net_free_port();
    net_prepare(&first, 1, port, 1);
    first.e.world = 2;
    const double begin = net_now();
    net_begin(&first);
    const int fd = say_slowly(port, 1, 2, 20);
    net_join(&first, 1);
    ck_assert_double_lt(net_now() - begin, 3);
    ck_assert_int_eq(first.status, MOE_E_COMM);
    ck_assert_msg(
        strstr(first.err.msg, "rank 0 waited 1 s at 127.0.0.1 port") && strstr(first.err.msg, "for rank 1 of 2"), "%s",
        first.err.msg);
    close(fd);
}
END_TEST

/* ---- who does not fit ---- */
/* Four ranks, of which the last one is wrong in some way. _i: how */
START_TEST(who_does_not_fit_is_told_to_all) {
    static const char *const texts[] = {
        "two processes are rank 1: one at 127.0.0.1 port", "was started as one of 5 ranks, rank 0 as one of 4",
        "has version 9 of comm/nccl's start, rank 0 has 1", "says that it is rank 7 of 4"};
    net_rank ranks[4];
    const uint16_t port = net_free_port();
    net_prepare(ranks, 4, port, 20);
    const double begin = net_now();
    for (uint32_t r = 0; r < 3; r++) net_begin(&ranks[r]);
    usleep(200000); /* the others are in by now */
    net_hello hello = {.version = _i == 2 ? 9 : NET_VERSION, .world = _i == 1 ? 5 : 4};
    const uint32_t from = _i == 0 ? 1 : _i == 3 ? 7 : 3;
    const int fd = net_dial(port);
    ck_assert(net_send_message(fd, NET_HELLO, from, &hello, sizeof hello));
    net_head head = {0};
    char text[sizeof ranks[0].err.msg] = "";
    ck_assert(net_receive(fd, &head, sizeof head) && head.type == NET_REFUSED && head.bytes <= sizeof text);
    ck_assert(net_receive(fd, text, head.bytes));
    ck_assert_msg(strstr(text, texts[_i]), "%s", text);
    net_join(ranks, 3);
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(ranks[r].status, MOE_E_COMM);
        ck_assert_msg(strstr(ranks[r].err.msg, texts[_i]), "rank %u: %s", r, ranks[r].err.msg);
    }
    ck_assert_double_lt(net_now() - begin, 5);
    close(fd);
}
END_TEST

START_TEST(missing_ranks_are_named) {
    net_rank ranks[5];
    net_prepare(ranks, 5, net_free_port(), 1);
    const double begin = net_now();
    net_begin(&ranks[0]);
    net_begin(&ranks[2]);
    pthread_join(ranks[0].thread, NULL);
    pthread_join(ranks[2].thread, NULL);
    ck_assert_double_lt(net_now() - begin, 4);
    ck_assert_msg(strstr(ranks[0].err.msg, "for ranks 1, 3, 4 of 5"), "%s", ranks[0].err.msg);
    ck_assert_int_eq(ranks[2].status, MOE_E_COMM);
    ck_assert_msg(ranks[2].err.msg[0], "no reason");
}
END_TEST

START_TEST(a_master_that_is_not_there_is_told_after_the_time) {
    net_rank ranks[2];
    net_prepare(ranks, 2, net_free_port(), 1);
    const double begin = net_now();
    net_begin(&ranks[1]);
    pthread_join(ranks[1].thread, NULL);
    ck_assert(net_now() - begin > 0.9 && net_now() - begin < 4);
    ck_assert_int_eq(ranks[1].status, MOE_E_COMM);
    ck_assert_msg(strstr(ranks[1].err.msg, "rank 1 did not reach rank 0 at 127.0.0.1 port ") &&
                      strstr(ranks[1].err.msg, "within 1 s: Connection refused"),
                  "%s", ranks[1].err.msg);
    strcpy(ranks[1].e.address, "no.such.host.invalid");
    net_begin(&ranks[1]);
    pthread_join(ranks[1].thread, NULL);
    ck_assert_msg(strstr(ranks[1].err.msg, "at no.such.host.invalid port"), "%s", ranks[1].err.msg);
}
END_TEST

static int listen_on(uint16_t port) {
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    ck_assert(bind(fd, (const struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 4) == 0);
    return fd;
}

START_TEST(a_port_that_is_taken_is_told) {
    net_rank ranks[2];
    const uint16_t port = net_free_port();
    const int fd = listen_on(port);
    net_prepare(ranks, 2, port, 5);
    net_begin(&ranks[0]);
    pthread_join(ranks[0].thread, NULL);
    ck_assert_int_eq(ranks[0].status, MOE_E_COMM);
    ck_assert_msg(strstr(ranks[0].err.msg, "rank 0: 127.0.0.1 port ") && strstr(ranks[0].err.msg, " is in use: "), "%s",
                  ranks[0].err.msg);
    close(fd);
}
END_TEST

/* Something else listens there: _i: it answers in other words, with half an answer, or not at all. */
typedef struct other_server {
    int listener, kind;
    _Atomic int over;
} other_server;
static void *serve(void *arg) {
    other_server *o = arg;
    while (!o->over) {
        const net_head half = {.magic = NET_MAGIC, .type = NET_WELCOME};
        const int fd = accept(o->listener, NULL, NULL);
        if (fd < 0) break;
        if (o->kind == 0) send(fd, "SSH-2.0-something that speaks first\n", 36, MSG_NOSIGNAL);
        if (o->kind == 1) send(fd, &half, 7, MSG_NOSIGNAL);
        while (!o->over) usleep(10000);
        close(fd);
    }
    return NULL;
}
START_TEST(another_server_at_that_port_is_told_or_given_up) {
    net_rank ranks[2];
    pthread_t thread;
    const uint16_t port = net_free_port();
    other_server o = {.listener = listen_on(port), .kind = _i};
    pthread_create(&thread, NULL, serve, &o);
    net_prepare(ranks, 2, port, 1);
    const double begin = net_now();
    net_begin(&ranks[1]);
    pthread_join(ranks[1].thread, NULL);
    ck_assert_double_lt(net_now() - begin, 4);
    ck_assert_int_eq(ranks[1].status, MOE_E_COMM);
    ck_assert_msg(strstr(ranks[1].err.msg, _i ? "rank 1 did not reach rank 0" : "what listens there is not rank 0"),
                  "%s", ranks[1].err.msg);
    o.over = 1;
    shutdown(o.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(o.listener);
}
END_TEST

/* ---- while it runs ---- */
/* _i: who aborts */
START_TEST(an_abort_reaches_all_once) {
    net_rank ranks[4];
    net_prepare(ranks, 4, net_free_port(), 20);
    net_meet_all(ranks, 4);
    net_abort(ranks[_i].n, "the disk is full");
    net_abort(ranks[_i].n, "and more");
    for (int r = 0; r < 4; r++)
        if (r != _i) ck_assert_str_eq(net_wait_end(&ranks[r]), "the disk is full");
    net_abort(ranks[(_i + 1) % 4].n, "an echo");
    char all[4];
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(net_all_gather(ranks[0].n, "x", 1, all, &err), MOE_E_COMM);
    ck_assert_str_eq(err.msg, "the disk is full");
    net_close_all(ranks, 4);
    for (int r = 0; r < 4; r++) ck_assert_uint_eq(ranks[r].n_ended, r == _i ? 0 : 1);
}
END_TEST

START_TEST(leaving_a_group_is_told_to_the_others) {
    net_rank ranks[4];
    net_prepare(ranks, 4, net_free_port(), 20);
    net_meet_all(ranks, 4);
    net_tell_left(ranks[_i].n, 77, 5);
    expect_gathered(ranks, 4); /* one connection, one order: it has come before */
    for (int r = 0; r < 4; r++) {
        pthread_mutex_lock(&ranks[r].lock);
        ck_assert_uint_eq(ranks[r].n_left, r == _i ? 0 : 1);
        if (r != _i)
            ck_assert(ranks[r].left_group == 77 && ranks[r].left_calls == 5 && ranks[r].left_rank == (uint32_t)_i);
        pthread_mutex_unlock(&ranks[r].lock);
    }
    net_close_all(ranks, 4);
}
END_TEST

/* _i: whose connections close without good-bye */
START_TEST(the_end_of_a_process_ends_all) {
    net_rank ranks[4];
    char text[100];
    net_prepare(ranks, 4, net_free_port(), 20);
    net_meet_all(ranks, 4);
    snprintf(text, sizeof text, "rank %d has ended: its process has closed the connection", _i);
    pthread_mutex_lock(&ranks[_i].n->lock); /* a process that has ended says nothing between two of its connections */
    for (uint32_t r = 0; r < 4; r++)
        if (ranks[_i].n->peers[r].fd >= 0) shutdown(ranks[_i].n->peers[r].fd, SHUT_RDWR);
    pthread_mutex_unlock(&ranks[_i].n->lock);
    for (int r = 0; r < 4; r++)
        if (r != _i) ck_assert_str_eq(net_wait_end(&ranks[r]), text);
    const double begin = net_now();
    net_close_all(ranks, 4);
    ck_assert_double_lt(net_now() - begin, 3);
}
END_TEST

START_TEST(blobs_of_other_sizes_are_an_error_on_all) {
    net_rank ranks[3];
    gather_job jobs[NET_RANKS];
    const uint32_t bytes[3] = {8, 8, 9};
    net_prepare(ranks, 3, net_free_port(), 20);
    net_meet_all(ranks, 3);
    gather_all(ranks, 3, jobs, bytes);
    for (uint32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(jobs[r].status, MOE_E_COMM);
        ck_assert_msg(strstr(jobs[r].err.msg, "bootstrap: rank"), "%s", jobs[r].err.msg);
    }
    net_close_all(ranks, 3);
}
END_TEST

START_TEST(a_rank_that_has_left_is_not_waited_for) {
    net_rank ranks[3];
    char all[3];
    moe_err err = {.size = sizeof err};
    net_prepare(ranks, 3, net_free_port(), 20);
    net_meet_all(ranks, 3);
    net_close(ranks[2].n);
    ck_assert_int_eq(net_all_gather(ranks[1].n, "x", 1, all, &err), MOE_E_COMM);
    ck_assert_str_eq(err.msg, "bootstrap: rank 2 has left");
    ck_assert_int_eq(net_all_gather(ranks[0].n, "x", 1, all, &err), MOE_E_COMM);
    net_close_all(ranks, 2);
}
END_TEST

/* A peer that stops in the middle of a message does not keep the others from ending. */
START_TEST(half_a_message_does_not_keep_anybody) {
    net_rank first;
    net_head head = {0};
    const uint16_t port = net_free_port();
    net_prepare(&first, 1, port, 20);
    first.e.world = 2;
    net_begin(&first);
    const int fd = say_slowly(port, 1, 2, SIZE_MAX);
    net_join(&first, 1);
    ck_assert(net_receive(fd, &head, sizeof head));
    head.type = NET_BLOB;
    head.from = 1;
    head.bytes = 1000;
    ck_assert(net_send(fd, &head, sizeof head) && net_send(fd, &head, 10));
    usleep(100000);
    net_abort(first.n, "enough"); /* else it waits some seconds for the good-bye */
    const double begin = net_now();
    net_close(first.n);
    ck_assert_double_lt(net_now() - begin, 3);
    close(fd);
}
END_TEST

/* ---- environment ---- */
static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMIX_NAMESPACE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALRANKID",
                                    "SLURM_STEP_ID",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_LOCALID",
                                    "OMPI_MCA_ess_base_jobid"};
/* "RANK=1 WORLD_SIZE=2" and nothing else. */
static void set_environment(const char *text) {
    char copy[400], *rest = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *eq = strchr(word, '=');
        *eq = 0;
        setenv(word, eq + 1, 1);
    }
}

static const struct {
    const char *set, *error; /* error NULL: rank 1 of 4, local 1 */
} environments[] = {
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=1", NULL},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1", NULL},
    {"PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1", NULL},
    {"SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1", NULL},
    {"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 RANK=1 WORLD_SIZE=4 LOCAL_RANK=1", NULL},
    {"RANK=1 WORLD_SIZE=4", "environment: WORLD_SIZE is set, but LOCAL_RANK is not; RANK, WORLD_SIZE and LOCAL_RANK"},
    {"RANK=4 WORLD_SIZE=4 LOCAL_RANK=0", "environment: RANK is 4, but WORLD_SIZE is 4"},
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=2", "environment: LOCAL_RANK is 2, but RANK is 1"},
    {"RANK=x WORLD_SIZE=4 LOCAL_RANK=1", "environment: RANK is \"x\", not a number"},
    {"RANK=-1 WORLD_SIZE=4 LOCAL_RANK=1", "environment: RANK is \"-1\", not a number"},
    {"RANK=1 WORLD_SIZE=4x LOCAL_RANK=1", "environment: WORLD_SIZE is \"4x\", not a number"},
    {"RANK=1 WORLD_SIZE=99999999999999999999 LOCAL_RANK=1", "environment: WORLD_SIZE is \"99999999999999999999\""},
    {"RANK=0 WORLD_SIZE=0 LOCAL_RANK=0", "environment: RANK is 0, but WORLD_SIZE is 0"},
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a", "environment: MASTER_ADDR is set, but MASTER_PORT is not"},
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_PORT=1", "environment: MASTER_PORT is set, but MASTER_ADDR is not"},
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=70000", "environment: MASTER_PORT is \"70000\""},
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=0", "environment: MASTER_PORT is 0, not a port"},
    {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2",
     "environment: RANK is 1, but OMPI_COMM_WORLD_RANK is 2"}};
enum { ENVIRONMENTS = sizeof environments / sizeof environments[0] };

START_TEST(launchers_say_who_we_are_or_are_told_what_is_wrong) {
    environment e;
    moe_err err = {.size = sizeof err};
    set_environment(environments[_i].set);
    const moe_status s = environment_read(&e, &err);
    if (environments[_i].error) {
        ck_assert_int_eq(s, MOE_E_ARG);
        ck_assert_msg(strstr(err.msg, environments[_i].error), "%s", err.msg);
        return;
    }
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    ck_assert(e.rank == 1 && e.world == 4 && e.local == 1);
}
END_TEST

START_TEST(ranks_that_cannot_meet_are_told_how) {
    environment e;
    moe_err err = {.size = sizeof err};
    set_environment("");
    ck_assert(environment_read(&e, &err) == MOE_OK && e.rank == 0 && e.world == 1);
    ck_assert_int_eq(environment_check_meeting(&e, &err), MOE_OK);
    set_environment("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1");
    ck_assert_int_eq(environment_read(&e, &err), MOE_OK);
    ck_assert_int_eq(environment_check_meeting(&e, &err), MOE_E_ARG);
    ck_assert_msg(strstr(err.msg, "rank 1 of 4 does not know where rank 0 is: set MASTER_ADDR"), "%s", err.msg);
    set_environment(
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
        "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=job7");
    ck_assert_int_eq(environment_read(&e, &err), MOE_OK);
    ck_assert_str_eq(e.job, "job7");
    ck_assert_int_eq(environment_check_meeting(&e, &err), MOE_OK);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1); /* two machines have no local socket in common */
    ck_assert_int_eq(environment_read(&e, &err), MOE_OK);
    ck_assert_int_eq(environment_check_meeting(&e, &err), MOE_E_ARG);
}
END_TEST

int main(void) {
    Suite *s = suite_create("comm/nccl start");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, ranks_meet_and_gather, 0, 12);
    tcase_add_test(t, a_good_bye_does_not_overtake_the_last_answer);
    tcase_add_test(t, ranks_meet_again_at_the_same_port);
    tcase_add_test(t, strangers_keep_nobody_out_and_nobody_waiting);
    tcase_add_test(t, a_slow_rank_is_let_in);
    tcase_add_test(t, a_rank_that_never_says_all_is_missing);
    tcase_add_loop_test(t, who_does_not_fit_is_told_to_all, 0, 4);
    tcase_add_test(t, missing_ranks_are_named);
    tcase_add_test(t, a_master_that_is_not_there_is_told_after_the_time);
    tcase_add_test(t, a_port_that_is_taken_is_told);
    tcase_add_loop_test(t, another_server_at_that_port_is_told_or_given_up, 0, 3);
    tcase_add_loop_test(t, an_abort_reaches_all_once, 0, 4);
    tcase_add_loop_test(t, leaving_a_group_is_told_to_the_others, 0, 4);
    tcase_add_loop_test(t, the_end_of_a_process_ends_all, 0, 4);
    tcase_add_test(t, blobs_of_other_sizes_are_an_error_on_all);
    tcase_add_test(t, a_rank_that_has_left_is_not_waited_for);
    tcase_add_test(t, half_a_message_does_not_keep_anybody);
    tcase_add_loop_test(t, launchers_say_who_we_are_or_are_told_what_is_wrong, 0, ENVIRONMENTS);
    tcase_add_test(t, ranks_that_cannot_meet_are_told_how);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}

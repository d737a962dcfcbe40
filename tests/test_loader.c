/*
 * tests/test_loader.c: mini-batches prepared ahead. Row r of tensor 0 holds r in every element,
 * tensor 1 has the label r + LABEL: so a mini-batch tells which rows it is made of.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe/data.h>

enum { WIDTH = 3, LABEL = 1000 };

typedef struct data {
    gpp_tensor tensor[2];
} data;

static data make(int64_t rows)
{
    float *x = malloc(((size_t)rows * WIDTH + 1) * sizeof *x);
    int64_t *y = malloc(((size_t)rows + 1) * sizeof *y);
    for (int64_t k = 0; k < rows * WIDTH; k++)
        x[k] = (float)(k / WIDTH);
    for (int64_t k = 0; k < rows; k++)
        y[k] = k + LABEL;
    return (data){{{x, GPP_F32, 3, {rows, 1, WIDTH}}, {y, GPP_I64, 1, {rows}}}};
}

static void release(data *d)
{
    free(d->tensor[0].data);
    free(d->tensor[1].data);
}

static gpp_loader *open_loader(const data *d, const gpp_loader_options *o)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_loader *l;
    cr_assert_eq(gpp_loader_new(&l, d->tensor, 2, o, &err), GPP_OK, "%s", err.msg);
    return l;
}

/* The rows of the next mini-batch into row[], both tensors agreeing; -1 at the end of the epoch. */
static int64_t next(gpp_loader *l, int64_t row[])
{
    gpp_tensor batch[2];
    gpp_error err = GPP_ERROR_INIT;
    gpp_status status = gpp_loader_next(l, batch, &err);
    if (status == GPP_ENOENT) {
        cr_expect_eq(err.code, GPP_OK, "the end of an epoch is no failure");
        return -1;
    }
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
    const float *x = batch[0].data;
    const int64_t *y = batch[1].data;
    cr_assert(batch[0].rank == 3 && batch[0].dim[1] == 1 && batch[0].dim[2] == WIDTH);
    cr_assert(batch[1].rank == 1 && batch[1].dtype == GPP_I64);
    cr_assert_eq(batch[0].dim[0], batch[1].dim[0]);
    for (int64_t r = 0; r < batch[0].dim[0]; r++) {
        row[r] = y[r] - LABEL;
        for (int k = 0; k < WIDTH; k++)
            cr_assert_eq(x[r * WIDTH + k], (float)row[r], "row %lld", (long long)r);
    }
    return batch[0].dim[0];
}

static gpp_loader_options choose(int64_t batch, bool shuffle, bool drop_last, int ahead)
{
    gpp_loader_options o = GPP_LOADER_OPTIONS_INIT;
    o.batch = batch;
    o.shuffle = shuffle;
    o.drop_last = drop_last;
    o.seed = 7;
    o.ahead = ahead;
    return o;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

/* --- the order -------------------------------------------------------------------------------- */

Test(loader, a_shuffle_is_a_permutation)
{
    for (int64_t rows = 0; rows < 200; rows++) {
        int64_t order[200];
        bool there[200] = {false};
        gpp_shuffle(3, rows, rows, order);
        for (int64_t k = 0; k < rows; k++) {
            cr_assert(order[k] >= 0 && order[k] < rows && !there[order[k]]);
            there[order[k]] = true;
        }
    }
}

/* Worked out apart from the library, by another program of the same description. */
Test(loader, a_shuffle_is_the_same_on_every_machine)
{
    static const int64_t want[] = {5, 7, 1, 0, 3, 6, 2, 4, 8, 9};
    int64_t order[10];
    gpp_shuffle(42, 3, 10, order);
    for (int k = 0; k < 10; k++)
        cr_expect_eq(order[k], want[k], "row %d is %lld", k, (long long)order[k]);
}

Test(loader, seed_and_epoch_change_the_order)
{
    enum { ROWS = 100 };
    int64_t order[4][ROWS];
    gpp_shuffle(1, 0, ROWS, order[0]);
    gpp_shuffle(1, 0, ROWS, order[1]);
    gpp_shuffle(1, 1, ROWS, order[2]);
    gpp_shuffle(2, 0, ROWS, order[3]);
    cr_expect(memcmp(order[0], order[1], sizeof *order) == 0);
    cr_expect(memcmp(order[0], order[2], sizeof *order) != 0);
    cr_expect(memcmp(order[0], order[3], sizeof *order) != 0);
    cr_expect(memcmp(order[2], order[3], sizeof *order) != 0);
}

/* Each of 4 rows at each of 4 places in 1/4 of 40,000 epochs: 10,000, give or take five standard
 * deviations of sqrt(40000 · 1/4 · 3/4) = 87. */
Test(loader, every_row_is_equally_often_at_every_place)
{
    int count[4][4] = {{0}};
    for (int epoch = 0; epoch < 40000; epoch++) {
        int64_t order[4];
        gpp_shuffle(5, epoch, 4, order);
        for (int k = 0; k < 4; k++)
            count[k][order[k]]++;
    }
    for (int k = 0; k < 4; k++)
        for (int r = 0; r < 4; r++)
            cr_expect(abs(count[k][r] - 10000) < 435, "row %d at place %d: %d", r, k, count[k][r]);
}

/* --- mini-batches ----------------------------------------------------------------------------- */

static const struct cut {
    const char *why;
    int64_t rows, batch;
    bool drop_last;
    int batches;
    int64_t size[5];
} cuts[] = {
    {"the last one is smaller", 10, 4, false, 3, {4, 4, 2}},
    {"or left out", 10, 4, true, 2, {4, 4}},
    {"all are full", 8, 4, false, 2, {4, 4}},
    {"nothing is left out of full ones", 8, 4, true, 2, {4, 4}},
    {"one row each", 3, 1, false, 3, {1, 1, 1}},
    {"a batch larger than there are rows", 5, 8, false, 1, {5}},
    {"such a one is left out", 5, 8, true, 0, {0}},
    {"a batch of all rows", 5, 5, true, 1, {5}},
    {"a batch that no memory could hold", 5, INT64_MAX, false, 1, {5}},
    {"no rows", 0, 4, false, 0, {0}},
    {"no rows, nothing left out", 0, 4, true, 0, {0}},
};

static void expect_epoch(const struct cut *c, gpp_loader *l, const int64_t order[])
{
    int64_t row[16], at = 0, got;
    for (int k = 0; k < c->batches; k++) {
        got = next(l, row);
        cr_assert_eq(got, c->size[k], "%s: mini-batch %d has %lld rows", c->why, k, (long long)got);
        for (int64_t r = 0; r < got; r++, at++)
            cr_assert_eq(row[r], order[at], "%s: place %lld", c->why, (long long)at);
    }
    cr_expect_eq(next(l, row), -1, "%s: the epoch goes on", c->why);
}

Test(loader, an_epoch_has_its_rows_in_their_order)
{
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++)
        for (int ahead = 1; ahead <= 5; ahead += 2)
            for (int shuffle = 0; shuffle < 2; shuffle++) {
                const struct cut *c = &cuts[k];
                data d = make(c->rows);
                gpp_loader_options o = choose(c->batch, shuffle, c->drop_last, ahead);
                o.pinned = ahead == 3;
                gpp_loader *l = open_loader(&d, &o);
                for (int epoch = 0; epoch < 3; epoch++) {
                    int64_t order[16];
                    for (int64_t r = 0; r < c->rows; r++)
                        order[r] = r;
                    if (shuffle)
                        gpp_shuffle(o.seed, epoch, c->rows, order);
                    expect_epoch(c, l, order);
                }
                gpp_loader_free(l);
                release(&d);
            }
}

Test(loader, timing_changes_nothing)
{
    data d = make(50);
    gpp_loader_options o = choose(7, true, false, 3);
    gpp_loader *fast = open_loader(&d, &o), *slow = open_loader(&d, &o);
    srand(1);
    for (int k = 0; k < 100; k++) {
        int64_t a[7], b[7];
        if (rand() % 4 == 0)
            pause_ms(1);
        int64_t rows = next(fast, a);
        cr_assert_eq(next(slow, b), rows);
        cr_assert(rows < 0 || memcmp(a, b, (size_t)rows * sizeof *a) == 0);
    }
    gpp_loader_free(fast);
    gpp_loader_free(slow);
    release(&d);
}

/* The thread runs ahead, but not over what was lent, be it one mini-batch or the last few. */
Test(loader, a_lent_mini_batch_stays_until_as_many_more_were_taken)
{
    enum { BATCH = 10, MOST = 3 };
    for (int ahead = 1; ahead <= 3; ahead++)
        for (int lent = 1; lent <= MOST; lent++) {
            data d = make(1000);
            gpp_loader_options o = choose(BATCH, true, false, ahead);
            o.lent = lent;
            gpp_loader *l = open_loader(&d, &o);
            gpp_tensor batch[20][2];
            int64_t before[20][BATCH];
            for (int k = 0; k < 20; k++) {
                cr_assert_eq(gpp_loader_next(l, batch[k], NULL), GPP_OK);
                memcpy(before[k], batch[k][1].data, sizeof before[k]);
                pause_ms(2);
                for (int q = k; q >= 0 && q > k - lent; q--)
                    cr_expect(memcmp(before[q], batch[q][1].data, sizeof before[q]) == 0,
                              "%d ahead, %d lent: mini-batch %d has changed after %d more", ahead,
                              lent, q, k - q);
            }
            gpp_loader_free(l);
            release(&d);
        }
}

Test(loader, mini_batches_are_aligned_for_vectors)
{
    data d = make(100);
    gpp_loader_options o = choose(7, true, false, 2);
    gpp_loader *l = open_loader(&d, &o);
    for (int k = 0; k < 6; k++) {
        gpp_tensor batch[2];
        cr_assert_eq(gpp_loader_next(l, batch, NULL), GPP_OK);
        cr_expect_eq((uintptr_t)batch[0].data % 64, 0);
        cr_expect_eq((uintptr_t)batch[1].data % 64, 0);
    }
    gpp_loader_free(l);
    release(&d);
}

/* --- positions -------------------------------------------------------------------------------- */

Test(loader, seeking_gives_what_reading_on_would_have_given)
{
    enum { EPOCHS = 4, BATCHES = 5, ROWS = 18 };
    data d = make(ROWS);
    gpp_loader_options o = choose(4, true, false, 2);
    int64_t rows[EPOCHS][BATCHES + 1], row[EPOCHS][BATCHES + 1][4];
    gpp_loader *l = open_loader(&d, &o);
    for (int e = 0; e < EPOCHS; e++)
        for (int k = 0; k <= BATCHES; k++)
            rows[e][k] = next(l, row[e][k]);
    srand(2);
    for (int round = 0; round < 300; round++) {
        int e = rand() % EPOCHS, k = rand() % (BATCHES + 1);
        cr_assert_eq(gpp_loader_seek(l, e, k, NULL), GPP_OK);
        if (rand() % 3 == 0)
            pause_ms(rand() % 2);
        for (int steps = rand() % 4; steps > 0 && e < EPOCHS; steps--) {
            int64_t got[4], epoch, index;
            gpp_loader_position(l, &epoch, &index);
            cr_assert(epoch == e && index == k, "at %lld, %lld; expected %d, %d", (long long)epoch,
                      (long long)index, e, k);
            cr_assert_eq(next(l, got), rows[e][k]);
            for (int64_t r = 0; r < rows[e][k]; r++)
                cr_assert_eq(got[r], row[e][k][r], "epoch %d, mini-batch %d", e, k);
            k = k == BATCHES ? 0 : k + 1;
            e += k == 0;
        }
    }
    gpp_loader_free(l);
    release(&d);
}

Test(loader, the_first_epoch_may_be_a_later_one)
{
    data d = make(9);
    gpp_loader_options o = choose(9, true, false, 1);
    o.epoch = 5;
    gpp_loader *l = open_loader(&d, &o);
    int64_t row[9], order[9];
    gpp_shuffle(o.seed, 5, 9, order);
    cr_assert_eq(next(l, row), 9);
    cr_expect(memcmp(row, order, sizeof order) == 0);
    gpp_loader_free(l);
    release(&d);
}

Test(loader, places_that_are_not_there_are_refused)
{
    static const struct {
        int64_t epoch, index;
    } cases[] = {{-1, 0}, {0, -1}, {0, 4}, {2, INT64_MAX}, {INT64_MAX, 0}};
    data d = make(10);
    gpp_loader_options o = choose(4, false, false, 2);
    gpp_loader *l = open_loader(&d, &o);
    int64_t row[4];
    next(l, row);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        int64_t epoch, index;
        cr_expect_eq(gpp_loader_seek(l, cases[k].epoch, cases[k].index, &err), GPP_EINVAL);
        cr_expect(strstr(err.msg, "0 to 3 expected"), "%s", err.msg);
        gpp_loader_position(l, &epoch, &index);
        cr_expect(epoch == 0 && index == 1);
    }
    cr_expect_eq(next(l, row), 4);
    cr_expect_eq(row[0], 4);
    cr_expect_eq(gpp_loader_seek(NULL, 0, 0, NULL), GPP_EINVAL);
    gpp_loader_free(l);
    release(&d);
}

/* --- waiting and ending ----------------------------------------------------------------------- */

static int64_t waits_of_an_epoch(const data *d, const gpp_loader_options *o, double *ms)
{
    gpp_loader *l = open_loader(d, o);
    int64_t row[8], waits;
    do
        pause_ms(10); /* for microseconds of work */
    while (next(l, row) >= 0);
    gpp_loader_waits(l, &waits, ms);
    gpp_loader_free(l);
    return waits;
}

/* Several attempts: a busy machine may keep the thread from running for a while. */
Test(loader, whoever_leaves_time_does_not_wait)
{
    data d = make(64);
    gpp_loader_options o = choose(8, true, false, 2);
    int64_t waits = -1;
    double ms = -1;
    for (int attempt = 0; attempt < 20 && waits != 0; attempt++)
        waits = waits_of_an_epoch(&d, &o, &ms);
    cr_expect_eq(waits, 0, "waited %lld times, %.3f ms", (long long)waits, ms);
    cr_expect_eq(ms, 0);
    release(&d);
}

/* 256 MB cannot have been gathered at once. */
Test(loader, waiting_is_counted)
{
    enum { ROWS = 1 << 16, ROW = 1 << 10 };
    float *x = calloc((size_t)ROWS * ROW, sizeof *x);
    gpp_tensor t = {x, GPP_F32, 2, {ROWS, ROW}}, batch;
    gpp_loader_options o = choose(ROWS, false, false, 1);
    gpp_loader *l;
    int64_t waits;
    double ms;
    cr_assert_eq(gpp_loader_new(&l, &t, 1, &o, NULL), GPP_OK);
    cr_assert_eq(gpp_loader_next(l, &batch, NULL), GPP_OK);
    gpp_loader_waits(l, &waits, &ms);
    cr_expect_eq(waits, 1);
    cr_expect_gt(ms, 0);
    gpp_loader_waits(l, NULL, NULL);
    gpp_loader_position(l, NULL, NULL);
    gpp_loader_free(l);
    free(x);
}

/* The thread is inside of a mini-batch of 256 MB: it is not waited for. Gathering it takes tens of
 * milliseconds at least; how long giving up takes is shown by the sanitizers, not by a clock. */
Test(loader, it_ends_and_seeks_in_the_middle_of_a_mini_batch)
{
    enum { ROWS = 1 << 16, ROW = 1 << 10 };
    float *x = calloc((size_t)ROWS * ROW, sizeof *x);
    gpp_tensor t = {x, GPP_F32, 2, {ROWS, ROW}}, batch;
    gpp_loader_options o = choose(ROWS / 2, true, false, 1);
    gpp_loader *l;
    x[5] = 5;
    cr_assert_eq(gpp_loader_new(&l, &t, 1, &o, NULL), GPP_OK);
    for (int k = 0; k < 5; k++)
        cr_assert_eq(gpp_loader_seek(l, k, k % 3, NULL), GPP_OK);
    cr_assert_eq(gpp_loader_seek(l, 0, 0, NULL), GPP_OK);
    int found = 0;
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(gpp_loader_next(l, &batch, NULL), GPP_OK);
        for (int64_t r = 0; r < batch.dim[0]; r++)
            found += ((float *)batch.data)[r * ROW + 5] == 5;
    }
    cr_expect_eq(found, 1, "row 0 came %d times", found);
    gpp_loader_free(l);
    for (int k = 0; k < 20; k++) {
        cr_assert_eq(gpp_loader_new(&l, &t, 1, &o, NULL), GPP_OK);
        if (k % 2)
            pause_ms(1);
        gpp_loader_free(l);
    }
    gpp_loader_free(NULL);
    free(x);
}

/* --- what is refused -------------------------------------------------------------------------- */

Test(loader, wrong_options_and_tensors_are_refused)
{
    float x[12] = {0};
    int64_t y[4] = {0};
    const gpp_tensor good = {x, GPP_F32, 2, {4, 3}}, label = {y, GPP_I64, 1, {4}};
    static const struct {
        const char *why, *says;
        gpp_status status;
        gpp_loader_options o;
        int count;
        gpp_tensor second;
    } cases[] = {
#define O(batch, epoch, ahead) L(batch, epoch, ahead, 1)
#define L(batch, epoch, ahead, lent)                                                               \
    {sizeof(gpp_loader_options), batch, true, false, 0, epoch, ahead, lent, false, {0, 0, 0}}
#define LABELS(rows)                                                                               \
    {                                                                                              \
        (void *)"", GPP_I64, 1,                                                                    \
        {                                                                                          \
            rows                                                                                   \
        }                                                                                          \
    }
        {"a batch of 0", "0 rows", GPP_EINVAL, O(0, 0, 2), 2, LABELS(4)},
        {"a negative batch", "-1 rows", GPP_EINVAL, O(-1, 0, 2), 2, LABELS(4)},
        {"none ahead", "0 mini-batches ahead", GPP_EINVAL, O(1, 0, 0), 2, LABELS(4)},
        {"too many ahead", "1001 mini-batches", GPP_EINVAL, O(1, 0, 1001), 2, LABELS(4)},
        {"none lent", "0 mini-batches lent", GPP_EINVAL, L(1, 0, 2, 0), 2, LABELS(4)},
        {"too many lent", "1001 mini-batches lent", GPP_EINVAL, L(1, 0, 2, 1001), 2, LABELS(4)},
        {"a negative epoch", "epoch -1", GPP_EINVAL, O(1, -1, 2), 2, LABELS(4)},
        {"an epoch that nothing can follow", "epoch 9223372036854775807", GPP_EINVAL,
         O(1, INT64_MAX, 2), 2, LABELS(4)},
        {"options not initialised", "struct_size is 0", GPP_EINVAL, {0}, 2, LABELS(4)},
        {"no tensors", "0 tensors", GPP_EINVAL, O(1, 0, 2), 0, LABELS(4)},
        {"too many tensors", "17 tensors", GPP_EINVAL, O(1, 0, 2), 17, LABELS(4)},
        {"another number of rows", "tensor 1 of a loader has 5 rows, tensor 0 has 4", GPP_ESHAPE,
         O(1, 0, 2), 2, LABELS(5)},
        {"negative rows", "tensor 1", GPP_ESHAPE, O(1, 0, 2), 2, LABELS(-4)},
        {"no rows at all", "rank 0", GPP_ESHAPE, O(1, 0, 2), 2, {(void *)"", GPP_I64, 0, {0}}},
        {"no type", "type 7", GPP_ESHAPE, O(1, 0, 2), 2, {(void *)"", (gpp_dtype)7, 1, {4}}},
        {"more than memory",
         "too large",
         GPP_ESHAPE,
         O(1, 0, 2),
         2,
         {(void *)"", GPP_I64, 3, {4, INT64_MAX, 3}}},
        {"no data", "data is NULL", GPP_EINVAL, O(1, 0, 2), 2, {NULL, GPP_I64, 1, {4}}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_tensor t[17] = {good, cases[k].second};
        gpp_loader *l = (gpp_loader *)x;
        gpp_status status = gpp_loader_new(&l, t, cases[k].count, &cases[k].o, &err);
        cr_expect_eq(status, cases[k].status, "%s: %s", cases[k].why, err.msg);
        cr_expect(strstr(err.msg, cases[k].says), "%s: %s", cases[k].why, err.msg);
        cr_expect(!l, "%s", cases[k].why);
    }
    gpp_loader *l;
    gpp_tensor batch[2];
    cr_expect_eq(gpp_loader_new(NULL, &good, 1, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_loader_new(&l, NULL, 1, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_loader_next(NULL, batch, NULL), GPP_EINVAL);
    cr_assert_eq(gpp_loader_new(&l, (gpp_tensor[]){good, label}, 2, NULL, NULL), GPP_OK);
    cr_expect_eq(gpp_loader_next(l, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_loader_next(l, batch, NULL), GPP_OK);
    cr_expect_eq(batch[0].dim[0], 1);
    gpp_loader_free(l);
}

Test(loader, rows_without_elements_are_counted_too)
{
    gpp_tensor t = {NULL, GPP_F32, 2, {5, 0}}, batch;
    gpp_loader_options o = choose(2, true, false, 1);
    gpp_loader *l;
    cr_assert_eq(gpp_loader_new(&l, &t, 1, &o, NULL), GPP_OK);
    for (int k = 0; k < 3; k++) {
        cr_assert_eq(gpp_loader_next(l, &batch, NULL), GPP_OK);
        cr_expect_eq(batch.dim[0], k < 2 ? 2 : 1);
    }
    cr_expect_eq(gpp_loader_next(l, &batch, NULL), GPP_ENOENT);
    gpp_loader_free(l);
}

/* Parts of all ranks together are the mini-batches; no other row is touched. */
Test(loader, a_part_has_its_rows_and_leaves_the_others_alone)
{
    enum { CHUNKS = 4, BATCH = 9 };
    data d = make(31);
    gpp_loader_options o = choose(BATCH, true, false, 2);
    gpp_loader *whole = open_loader(&d, &o), *part[2];
    for (int k = 0; k < 2; k++) {
        o.part = (gpp_part){CHUNKS, k ? 3 : 0, k ? CHUNKS : 3};
        part[k] = open_loader(&d, &o);
    }
    gpp_tensor all[2], some[2][2];
    while (gpp_loader_next(whole, all, NULL) == GPP_OK) {
        int64_t rows = all[1].dim[0], each = (rows + CHUNKS - 1) / CHUNKS;
        for (int k = 0; k < 2; k++)
            cr_assert_eq(gpp_loader_next(part[k], some[k], NULL), GPP_OK);
        for (int64_t r = 0; r < rows; r++) {
            const gpp_tensor *from = some[r >= 3 * each];
            cr_expect_eq(((int64_t *)from[1].data)[r], ((int64_t *)all[1].data)[r]);
            cr_expect_eq(((float *)from[0].data)[r * WIDTH], ((float *)all[0].data)[r * WIDTH]);
        }
    }
    for (int k = 0; k < 2; k++)
        gpp_loader_free(part[k]);
    gpp_loader_free(whole);
    o.part = (gpp_part){CHUNKS, 2, CHUNKS + 1};
    cr_expect_eq(gpp_loader_new(&whole, d.tensor, 2, &o, NULL), GPP_EINVAL);
    release(&d);
}

/*
 * tools/train_state.c: the state file of a training: what the training depends on besides
 * parameters, and where it is, as words.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train.h"

enum { EPOCH, INDEX, LOSS_SUM, LOSS_ROWS, BATCH, ROWS, ORDER, SEED, CHUNKS, REPLICAS };
enum { CLIP_NORM = REPLICAS + 1, SKIP, DEFERRED, ASCENDING, SHAPE, MEAN, STD, LOSS, OPTIMIZER };
enum { LR_SCHEDULE = OPTIMIZER + 1, MODEL, WORDS };
enum { SAME = BATCH, NUMBERS = SHAPE, EXCERPT = 60 };

/* The words of a state. Those from SAME on must not change when a training is resumed. */
static const struct {
    const char *key, *shown;
} word_names[WORDS] = {
    [EPOCH] = {"train.epoch", "epoch"},
    [INDEX] = {"train.index", "index"},
    [LOSS_SUM] = {"train.loss_sum", "loss_sum"},
    [LOSS_ROWS] = {"train.loss_rows", "loss_rows"},
    [BATCH] = {"train.batch", "--batch"},
    [ROWS] = {"train.rows", "rows"},
    [ORDER] = {"train.order", "order"},
    [SEED] = {"train.seed", "--seed"},
    [CHUNKS] = {"train.chunks", "--chunks"},
    [REPLICAS] = {"train.replicas", "--replicas"},
    [CLIP_NORM] = {"train.clip_norm", "--clip-norm"},
    [SKIP] = {"train.skip_nonfinite", "--skip-nonfinite"},
    [DEFERRED] = {"train.deferred_batch_norm", "--deferred-batch-norm"},
    [ASCENDING] = {"train.ascending_backward", "--ascending-backward"},
    [SHAPE] = {"train.shape", "--shape"},
    [MEAN] = {"train.mean", "--mean"},
    [STD] = {"train.std", "--std"},
    [LOSS] = {"train.loss", "--loss"},
    [OPTIMIZER] = {"train.optimizer", "--optimizer"},
    [LR_SCHEDULE] = {"train.lr_schedule", "--lr-schedule"},
    [MODEL] = {"train.model", "model"},
};

/* Values of the words. Texts belong to somebody else. */
typedef struct words {
    char number[NUMBERS][48];
    const char *value[WORDS];
} words;

/* Prints the fewest digits that determine the value. */
static void print_real(char text[48], double value)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 48, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

static void print_whole(char text[48], int64_t value)
{
    snprintf(text, 48, "%" PRId64, value);
}

static const char *or_else(const char *text, const char *otherwise)
{
    return text ? text : otherwise;
}

static void describe_texts(const training *t, const char *value[WORDS])
{
    const settings *how = &t->how;
    value[SHAPE] = or_else(how->convert.shape, "as in the file");
    value[MEAN] = or_else(how->convert.mean, "0");
    value[STD] = or_else(how->convert.std, "1");
    value[LOSS] = how->loss;
    value[OPTIMIZER] = how->optimizer;
    value[LR_SCHEDULE] = or_else(how->lr_schedule, "none");
    value[MODEL] = t->plain;
}

/* Writes what the training depends on as it is now: to save it, or to compare it with a saved
 * state. The sum of losses is hexadecimal, so that it is read back exactly. */
static void describe(const training *t, words *w)
{
    const settings *how = &t->how;
    print_whole(w->number[EPOCH], t->epoch);
    print_whole(w->number[INDEX], t->index);
    snprintf(w->number[LOSS_SUM], 48, "%a", t->loss_sum);
    print_whole(w->number[LOSS_ROWS], t->loss_rows);
    print_whole(w->number[BATCH], how->batch);
    print_whole(w->number[ROWS], t->data.x[0].dim[0]);
    snprintf(w->number[ORDER], 48, "shuffle=%d drop_last=%d", !how->no_shuffle, how->drop_last);
    snprintf(w->number[SEED], 48, "%" PRIu64, t->seed);
    print_whole(w->number[CHUNKS], how->pipe.chunks ? how->pipe.chunks : 1);
    print_whole(w->number[REPLICAS], how->pipe.replicas ? how->pipe.replicas : 1);
    print_real(w->number[CLIP_NORM], how->clip_norm);
    print_whole(w->number[SKIP], how->skip_nonfinite);
    print_whole(w->number[DEFERRED], how->pipe.deferred);
    print_whole(w->number[ASCENDING], how->pipe.ascending);
    for (int k = 0; k < NUMBERS; k++)
        w->value[k] = w->number[k];
    describe_texts(t, w->value);
}

/* The text without comments and superfluous blanks, layers separated by "; ". Texts that differ in
 * these alone become equal. */
char *train_plain_text(const char *text)
{
    size_t length = 0;
    char between = '\0', *plain = malloc(2 * strlen(text) + 1);
    for (; plain && *text; text++) {
        if (*text == '#')
            text += strcspn(text, "\n");
        if (!*text)
            break;
        if (strchr(" \t\r\n;", *text)) {
            between = *text == '\n' || *text == ';' || between == ';' ? ';' : ' ';
            continue;
        }
        bool part = between == ';' && length && plain[length - 1] != '{' && *text != '}';
        if (part)
            plain[length++] = ';';
        if (between && length)
            plain[length++] = ' ';
        between = '\0';
        plain[length++] = *text;
    }
    if (plain)
        plain[length] = '\0';
    return plain;
}

gpp_status train_save(training *t)
{
    words w;
    const char *pairs[2 * WORDS];
    if (!t->how.save)
        return GPP_OK;
    describe(t, &w);
    for (int k = 0; k < WORDS; k++) {
        pairs[2 * k] = word_names[k].key;
        pairs[2 * k + 1] = w.value[k];
    }
    return gpp_pipe_save_state(t->pipe, t->how.save, pairs, WORDS, &t->err);
}

static gpp_status take_place(training *t, const char *const word[WORDS])
{
    t->epoch = strtoll(word[EPOCH], NULL, 10);
    t->index = strtoll(word[INDEX], NULL, 10);
    t->loss_sum = strtod(word[LOSS_SUM], NULL);
    t->loss_rows = strtoll(word[LOSS_ROWS], NULL, 10);
    if (t->epoch >= 0 && t->index >= 0)
        return GPP_OK;
    return tool_note(&t->err, GPP_ESYNTAX, "%s: mini-batch %s of epoch %s", t->how.resume,
                     word[INDEX], word[EPOCH]);
}

/* Shows both values. Long ones are shown from shortly before the place where they differ. */
static gpp_status fail_changed(training *t, int k, const char *saved, const char *now)
{
    size_t same = 0, longest = strlen(saved) > strlen(now) ? strlen(saved) : strlen(now);
    while (saved[same] && saved[same] == now[same])
        same++;
    size_t from = longest > EXCERPT && same > 20 ? same - 20 : 0;
    const char *dots = from ? "..." : "", *quote = k >= NUMBERS ? "\"" : "";
    return tool_note(&t->err, GPP_EINVAL,
                     "%.70s was saved with %s %s%s%.*s%s, now it is %s%s%.*s%s", t->how.resume,
                     word_names[k].shown, quote, dots, EXCERPT - 10, saved + from, quote, quote,
                     dots, EXCERPT - 10, now + from, quote);
}

/* A seed or an lr_schedule that is not given is taken from the state. */
static gpp_status take_defaults(training *t, const char *const word[WORDS])
{
    if (!t->how.seed.given)
        t->seed = strtoull(word[SEED], NULL, 10);
    if (t->how.lr_schedule || !strcmp(word[LR_SCHEDULE], "none"))
        return GPP_OK;
    t->how.lr_schedule = t->lr_schedule = strdup(word[LR_SCHEDULE]);
    return t->lr_schedule ? GPP_OK : tool_note(&t->err, GPP_ENOMEM, "an lr_schedule");
}

/* Fails when a word that must not change has changed. */
static gpp_status take_words(training *t, const gpp_file *file)
{
    words w;
    const char *word[WORDS];
    for (int k = 0; k < WORDS; k++)
        if (!(word[k] = gpp_file_word(file, word_names[k].key)))
            return tool_note(&t->err, GPP_ENOENT,
                             "%.100s has no \"%s\": it is not a state of this version's \"gridpipe "
                             "train --save\"",
                             t->how.resume, word_names[k].key);
    gpp_status status = take_defaults(t, word);
    if (status != GPP_OK)
        return status;
    describe(t, &w);
    for (int k = SAME; k < WORDS; k++)
        if (strcmp(w.value[k], word[k]) != 0)
            return fail_changed(t, k, word[k], w.value[k]);
    return take_place(t, word);
}

/* Rank 0 has the file, and gives its words to the others. */
static gpp_status share_words(training *t, gpp_file **file)
{
    gpp_status status = GPP_OK;
    if (tool_rank() > 0)
        status = gpp_file_new(file, &t->err);
    for (int k = 0; k < WORDS && status == GPP_OK; k++) {
        const char *word = tool_rank() ? NULL : gpp_file_word(*file, word_names[k].key);
        size_t length = word ? strlen(word) + 1 : 0;
        status = tool_share(0, &length, sizeof length, &t->err);
        char *copy = calloc(length + 1, 1);
        if (!copy)
            status = tool_note(&t->err, GPP_ENOMEM, "the words of %s", t->how.resume);
        if (word && copy)
            memcpy(copy, word, length);
        if (status == GPP_OK)
            status = tool_share(0, copy, length, &t->err);
        if (status == GPP_OK && tool_rank() > 0 && length)
            status = gpp_file_set_word(*file, word_names[k].key, copy, &t->err);
        free(copy);
    }
    return status;
}

gpp_status train_read_state(training *t)
{
    gpp_file *file = NULL;
    gpp_status status = tool_rank() == 0 ? gpp_file_read(&file, t->how.resume, &t->err) : GPP_OK;
    if (status == GPP_OK && tool_comm())
        status = share_words(t, &file);
    if (status == GPP_OK)
        status = take_words(t, file);
    gpp_file_free(file);
    return status;
}

/*
 * codelets/cuda/conv_columns.cu: convolutions by columns.
 *
 * For the pixels of maps (of a chunk of rows at a time) and group g, col[g][pixel][r][s][c] is what
 * the window of that pixel sees of the image, 0 in the padding; its rows are ordered like those of
 * W[k][r][s][c]. Then, with _g for the channels of the group,
 *
 *   forward    map_g = col[g] · W_gᵀ      data     image = Σ over windows of (map_g · W_g)
 *   weights    dW_g = map_gᵀ · col[g]
 *
 * The sum over windows is gathered by pixel of the image, in the order of r, s. For a pointwise
 * convolution the image is col.
 *
 * Limits: cuBLAS's products by arithmetic, where a group has enough channels; writing and gathering
 * columns by memory, which is kH·kW times the image.
 */
#include "codelets/cuda/conv_internal.h"

/* --- sizes ------------------------------------------------------------------------------------ */

static int64_t column_count(const gpp__conv_shape *s, int64_t rows)
{
    return rows * s->out[0] * s->out[1] * s->groups * gpp__conv_window(s);
}

int64_t gpp__conv_chunk(const gpp__cuda_conv *c, int64_t bytes)
{
    const gpp__conv_shape *s = &c->shape;
    int64_t countable = INT32_MAX / (s->out[0] * s->out[1]);
    int64_t rows = c->plain ? c->rows : bytes / (int64_t)sizeof(float) / column_count(s, 1);
    rows = rows < 1 ? 1 : rows;
    rows = rows < countable ? rows : countable;
    return rows < c->rows ? rows : c->rows;
}

size_t gpp__conv_columns_bytes(const gpp__cuda_conv *c, const gpp__cuda *cuda, gpp__conv_way which)
{
    size_t each = which == GPP__CONV_DATA ? sizeof(float) : gpp__cuda_operand_size(cuda);
    return c->plain ? 0 : (size_t)column_count(&c->shape, c->way[which].chunk) * each;
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* Of a convolution, in the kernels' integers; a line of either tensor has less than 2^31 numbers.
 */
typedef struct lines {
    int64_t rows;
    int groups, channels; /* of a group */
    int height, width, map_height, map_width;
    int kernel[2], stride[2], padding[2], dilation[2];
} lines;

static lines lines_of(const gpp__conv_shape *s, int64_t rows)
{
    lines l;
    l.rows = rows;
    l.groups = (int)s->groups, l.channels = (int)gpp__conv_channels_in(s);
    l.height = (int)s->in[0], l.width = (int)s->in[1];
    l.map_height = (int)s->out[0], l.map_width = (int)s->out[1];
    for (int k = 0; k < 2; k++) {
        l.kernel[k] = (int)s->kernel[k], l.stride[k] = (int)s->stride[k];
        l.padding[k] = (int)s->padding[k], l.dilation[k] = (int)s->dilation[k];
    }
    return l;
}

/* Lines (group, row, line of the map) by blocks; threads next to each other write, and within a
 * window read, numbers next to each other. */
template <typename number>
static __global__ void write_columns(lines l, const number *image, number *columns)
{
    unsigned window = l.kernel[0] * l.kernel[1] * l.channels, length = l.map_width * window;
    int64_t all = l.groups * l.rows * l.map_height;
    for (int64_t line = blockIdx.x; line < all; line += gridDim.x) {
        int p = (int)(line % l.map_height);
        int64_t row = line / l.map_height % l.rows, group = line / l.map_height / l.rows;
        const number *from =
            image + row * l.height * l.width * l.groups * l.channels + group * l.channels;
        for (unsigned e = threadIdx.x; e < length; e += blockDim.x) {
            int c = (int)(e % l.channels), tap = (int)(e % window / l.channels);
            int q = (int)(e / window);
            int64_t y = (int64_t)p * l.stride[0] - l.padding[0] +
                        (int64_t)(tap / l.kernel[1]) * l.dilation[0];
            int64_t x = (int64_t)q * l.stride[1] - l.padding[1] +
                        (int64_t)(tap % l.kernel[1]) * l.dilation[1];
            bool inside = y >= 0 && y < l.height && x >= 0 && x < l.width;
            columns[line * length + e] =
                inside ? from[(y * l.width + x) * l.groups * l.channels + c] : (number)0;
        }
    }
}

/* The pixel of the map whose tap `tap` falls on `at`, or -1. */
__device__ static inline int source(int at, int tap, int padding, int dilation, int stride,
                                    int size)
{
    int64_t from = (int64_t)at + padding - (int64_t)tap * dilation;
    uint32_t pixel = (uint32_t)from / (uint32_t)stride; /* from is less than 2^32 */
    bool is = from >= 0 && pixel * (uint32_t)stride == (uint32_t)from && pixel < (uint32_t)size;
    return is ? (int)pixel : -1;
}

/* What the windows of one line of the map, whose tap in height is `r`, add to element (x, group, c)
 * of a line of the image. `line`: of (group, row, line of the map). */
__device__ static inline float add_taps(const lines &l, const float *columns, int64_t line, int r,
                                        int x, int c, float sum)
{
    for (int s = 0; s < l.kernel[1]; s++) {
        int q = source(x, s, l.padding[1], l.dilation[1], l.stride[1], l.map_width);
        int64_t tap = ((line * l.map_width + q) * l.kernel[0] + r) * l.kernel[1] + s;
        if (q >= 0)
            sum += columns[tap * l.channels + c];
    }
    return sum;
}

/* Lines (row, line of the image) by blocks. */
static __global__ void gather_columns(lines l, const float *columns, float *image)
{
    unsigned all = l.groups * l.channels, length = l.width * all;
    for (int64_t line = blockIdx.x; line < l.rows * l.height; line += gridDim.x) {
        int64_t row = line / l.height;
        int y = (int)(line % l.height);
        for (unsigned e = threadIdx.x; e < length; e += blockDim.x) {
            int c = (int)(e % all % l.channels), group = (int)(e % all / l.channels);
            float sum = 0;
            for (int r = 0; r < l.kernel[0]; r++) {
                int p = source(y, r, l.padding[0], l.dilation[0], l.stride[0], l.map_height);
                int64_t from = (group * l.rows + row) * l.map_height + p;
                if (p >= 0)
                    sum = add_taps(l, columns, from, r, (int)(e / all), c, sum);
            }
            image[line * length + e] = sum;
        }
    }
}

static unsigned blocks_of_lines(const gpp__cuda *cuda, int64_t lines)
{
    int64_t most = (int64_t)cuda->multiprocessors * 16;
    return (unsigned)(lines < most ? lines : most);
}

static gpp_status write_out(const gpp__conv_call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    lines l = lines_of(s, rows);
    unsigned blocks = blocks_of_lines(k->cuda, s->groups * rows * s->out[0]);
    int64_t at = gpp__conv_images(s, row);
    if (k->conv->plain)
        return GPP_OK;
    if (k->image)
        GPP__LAUNCH(write_columns<uint16_t>, blocks, GPP__THREADS, k->cuda, l,
                    (const uint16_t *)k->image + at, (uint16_t *)k->rest);
    else
        GPP__LAUNCH(write_columns<float>, blocks, GPP__THREADS, k->cuda, l, k->args->image + at,
                    (float *)k->rest);
    return gpp__cuda_launched(k->conv->layer, k->err);
}

static gpp_status gather(const gpp__conv_call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    lines l = lines_of(s, rows);
    if (k->conv->plain)
        return GPP_OK;
    GPP__LAUNCH(gather_columns, blocks_of_lines(k->cuda, rows * s->in[0]), GPP__THREADS, k->cuda, l,
                (const float *)k->rest, k->args->image + gpp__conv_images(s, row));
    return gpp__cuda_launched(k->conv->layer, k->err);
}

/* The matrix of columns, or the image as one, from `row` on; `numbers` of `size` bytes. */
static gpp__cuda_matrix columns_of(const gpp__conv_call *k, const void *image, int64_t row,
                                   int64_t rows, size_t size)
{
    const gpp__conv_shape *s = &k->conv->shape;
    gpp__cuda_matrix m = gpp__cuda_matrix_of(k->rest, gpp__conv_window(s), false);
    m.next = rows * s->out[0] * s->out[1] * gpp__conv_window(s);
    if (k->conv->plain) {
        m.at = (const char *)image + (size_t)gpp__conv_images(s, row) * size;
        m.step = s->in_channels;
        m.next = gpp__conv_channels_in(s);
    }
    return m;
}

static gpp__cuda_matrix map_of(const gpp__conv_call *k, int64_t row, bool turned)
{
    const gpp__conv_shape *s = &k->conv->shape;
    const char *at = k->map ? (const char *)k->map : (const char *)k->args->map;
    gpp__cuda_matrix m =
        gpp__cuda_matrix_of(at + (size_t)gpp__conv_maps(s, row) * gpp__cuda_operand_size(k->cuda),
                            s->out_channels, turned);
    m.next = gpp__conv_channels_out(s);
    return m;
}

static gpp__cuda_matrix weights_of(const gpp__conv_call *k, bool turned)
{
    const gpp__conv_shape *s = &k->conv->shape;
    gpp__cuda_matrix m = gpp__cuda_matrix_of(k->args->weights, gpp__conv_window(s), turned);
    m.next = gpp__conv_channels_out(s) * gpp__conv_window(s);
    return m;
}

static gpp_status multiply(const gpp__conv_call *k, const gpp__cuda_product *p)
{
    return gpp__cuda_multiply(k->cuda, k->conv->layer, p, k->err);
}

static gpp_status forward_columns(const gpp__conv_call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    const void *image = k->image ? k->image : k->args->image;
    gpp__cuda_product p = {rows * s->out[0] * s->out[1], gpp__conv_channels_out(s),
                           gpp__conv_window(s)};
    p.a = columns_of(k, image, row, rows, gpp__cuda_operand_size(k->cuda));
    p.b = weights_of(k, true);
    p.c = k->args->map + gpp__conv_maps(s, row);
    p.c_step = s->out_channels, p.c_next = gpp__conv_channels_out(s), p.batch = s->groups;
    gpp_status status = write_out(k, row, rows);
    return status == GPP_OK ? multiply(k, &p) : status;
}

static gpp_status data_columns(const gpp__conv_call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    gpp__cuda_matrix to = columns_of(k, k->args->image, row, rows, sizeof(float));
    gpp__cuda_product p = {rows * s->out[0] * s->out[1], gpp__conv_window(s),
                           gpp__conv_channels_out(s)};
    p.a = map_of(k, row, false);
    p.b = weights_of(k, false);
    p.c = (float *)to.at, p.c_step = to.step, p.c_next = to.next, p.batch = s->groups;
    gpp_status status = multiply(k, &p);
    return status == GPP_OK ? gather(k, row, rows) : status;
}

static gpp_status weights_columns(const gpp__conv_call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    const void *image = k->image ? k->image : k->args->image;
    gpp__cuda_product p = {gpp__conv_channels_out(s), gpp__conv_window(s),
                           rows * s->out[0] * s->out[1]};
    p.a = map_of(k, row, true);
    p.b = columns_of(k, image, row, rows, gpp__cuda_operand_size(k->cuda));
    p.c = k->args->grad, p.c_step = gpp__conv_window(s),
    p.c_next = gpp__conv_channels_out(s) * gpp__conv_window(s);
    p.batch = s->groups;
    p.add = k->args->add || row > 0;
    gpp_status status = write_out(k, row, rows);
    return status == GPP_OK ? multiply(k, &p) : status;
}

gpp_status gpp__conv_by_columns(const gpp__conv_call *k, gpp__conv_way which)
{
    const gpp__cuda_conv *c = k->conv;
    int64_t chunk = c->way[which].chunk;
    gpp_status status = GPP_OK;
    for (int64_t row = 0; row < c->rows && status == GPP_OK; row += chunk) {
        int64_t rows = c->rows - row < chunk ? c->rows - row : chunk;
        status = which == GPP__CONV_FORWARD ? forward_columns(k, row, rows)
                 : which == GPP__CONV_DATA  ? data_columns(k, row, rows)
                                            : weights_columns(k, row, rows);
    }
    return status;
}

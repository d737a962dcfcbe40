/*
 * codelets/tasks/handle.c: see codelets/tasks/handle.h.
 *
 * StarPU keeps freed memory of a data interface for later handles that look alike, interface
 * contents included. Ours points to its own gpp__handle, so `dontcache` is set and no two buffers
 * ever compare alike.
 */
#include "codelets/tasks/handle.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <starpu.h>

#include "codelets/cuda/current.h"
#include "codelets/tasks/note.h"

typedef struct buffer_interface {
    uintptr_t ptr; /* starpu_interface_copy takes this and an offset, which is 0 here */
    size_t bytes;
    gpp__handle *owner;
} buffer_interface;

/* The meter of memory on `node`; NULL: none, such as of the host's copy of what a GPU has made. */
static gpp__meter *meter_of(const gpp__handle *b, unsigned node)
{
    for (int c = 0; c < 2; c++)
        if (b->charge[c].meter && b->charge[c].node == node)
            return b->charge[c].meter;
    return NULL;
}

static void meter_add(gpp__meter *m, size_t bytes)
{
    if (!m)
        return;
    size_t now = atomic_fetch_add(&m->now, bytes) + bytes, peak = atomic_load(&m->peak);
    while (now > peak && !atomic_compare_exchange_weak(&m->peak, &peak, now))
        ;
}

static void meter_subtract(gpp__meter *m, size_t bytes)
{
    if (m)
        atomic_fetch_sub(&m->now, bytes);
}

#if STARPU_MAJOR_VERSION == 1 && STARPU_MINOR_VERSION < 4
typedef unsigned home_number;
#else
typedef int home_number;
#endif

static void on_register(starpu_data_handle_t handle, home_number home_node, void *data_interface)
{
    (void)home_node; /* ours have none */
    for (unsigned node = 0; node < STARPU_MAXNODES; node++) {
        buffer_interface *i = starpu_data_get_interface_on_node(handle, node);
        *i = *(buffer_interface *)data_interface;
        i->ptr = 0;
    }
}

/* Where the memory is that a buffer has in another one's; 0: it has memory of its own there. */
static uintptr_t inside(const gpp__handle *b, unsigned node)
{
    return b->whole && b->charge[0].node == node ? b->whole->charge[0].reserved + b->at : 0;
}

static uintptr_t take_reserved(gpp__handle *b, unsigned node)
{
    for (int c = 0; c < 2; c++)
        if (b->charge[c].reserved && b->charge[c].node == node &&
            !atomic_exchange(&b->charge[c].in_use, true))
            return b->charge[c].reserved;
    return 0;
}

/** Returns whether `ptr` was reserved memory, which is not freed before the buffer is. */
static bool give_back(gpp__handle *b, uintptr_t ptr)
{
    for (int c = 0; c < 2; c++)
        if (b->charge[c].reserved == ptr) {
            atomic_store(&b->charge[c].in_use, false);
            return true;
        }
    return false;
}

/* Where a buffer that fetches is in the host's memory. Without data the address does not matter,
 * but StarPU wants one. */
static uintptr_t source_of(const gpp__handle *b)
{
    return b->source ? b->source : (uintptr_t)b;
}

static bool is_source(const gpp__handle *b, unsigned node)
{
    return b->fetches && node == STARPU_MAIN_RAM;
}

static starpu_ssize_t on_allocate(void *data_interface, unsigned node)
{
    buffer_interface *i = data_interface;
    if (is_source(i->owner, node)) {
        i->ptr = source_of(i->owner);
        return (starpu_ssize_t)i->bytes;
    }
    i->ptr = inside(i->owner, node);
    if (i->ptr)
        return (starpu_ssize_t)i->bytes;
    i->ptr = take_reserved(i->owner, node);
    if (!i->ptr)
        i->ptr = starpu_malloc_on_node(node, i->bytes);
    if (!i->ptr)
        return -ENOMEM;
    meter_add(meter_of(i->owner, node), i->bytes);
    return (starpu_ssize_t)i->bytes;
}

static void on_free(void *data_interface, unsigned node)
{
    buffer_interface *i = data_interface;
    if (is_source(i->owner, node) || inside(i->owner, node)) {
        i->ptr = 0;
        return;
    }
    if (!give_back(i->owner, i->ptr))
        starpu_free_on_node(node, i->ptr, i->bytes);
    i->ptr = 0;
    meter_subtract(meter_of(i->owner, node), i->bytes);
}

static int on_copy(void *src, unsigned src_node, void *dst, unsigned dst_node, void *async_data)
{
    buffer_interface *s = src, *d = dst;
    size_t bytes = s->owner->fetches ? s->owner->source_bytes : s->bytes;
    if (bytes == 0)
        return 0;
    atomic_fetch_add(&s->owner->copies, 1);
    return starpu_interface_copy(s->ptr, 0, src_node, d->ptr, 0, dst_node, bytes, async_data);
}

static void *to_pointer(void *data_interface, unsigned node)
{
    const buffer_interface *i = data_interface;
    /* StarPU 1.3 files handles under their address in the host's memory, and never finds one again
     * that has another by then, or that shares it. */
    return is_source(i->owner, node) || inside(i->owner, node) ? NULL : (void *)i->ptr;
}

static buffer_interface *any_interface(starpu_data_handle_t handle)
{
    return starpu_data_get_interface_on_node(handle, STARPU_MAIN_RAM);
}

static size_t get_size(starpu_data_handle_t handle)
{
    return any_interface(handle)->bytes;
}

static uint32_t footprint(starpu_data_handle_t handle)
{
    return starpu_hash_crc32c_be_n(&any_interface(handle)->bytes, sizeof(size_t), 0);
}

static uint32_t alloc_footprint(starpu_data_handle_t handle)
{
    return starpu_hash_crc32c_be_n(&any_interface(handle)->owner, sizeof(void *),
                                   footprint(handle));
}

static int same_size(void *a, void *b)
{
    return ((buffer_interface *)a)->bytes == ((buffer_interface *)b)->bytes;
}

static int same_owner(void *a, void *b)
{
    return ((buffer_interface *)a)->owner == ((buffer_interface *)b)->owner;
}

static void display(starpu_data_handle_t handle, FILE *f)
{
    fprintf(f, "%zu\t", any_interface(handle)->bytes);
}

static starpu_ssize_t describe(void *data_interface, char *buf, size_t size)
{
    return snprintf(buf, size, "G%zu", ((buffer_interface *)data_interface)->bytes);
}

/** Packing is for runtimes that send data elsewhere. The bytes are sent as they are, also from a
 * GPU. */
static int pack(starpu_data_handle_t handle, unsigned node, void **ptr, starpu_ssize_t *count)
{
    const buffer_interface *i = starpu_data_get_interface_on_node(handle, node);
    *count = (starpu_ssize_t)i->bytes;
    if (!ptr)
        return 0;
    if (starpu_malloc_flags(ptr, i->bytes, 0))
        return -ENOMEM;
    return starpu_interface_copy(i->ptr, 0, node, (uintptr_t)*ptr, 0, STARPU_MAIN_RAM, i->bytes,
                                 NULL);
}

static int unpack(starpu_data_handle_t handle, unsigned node, void *ptr, size_t count)
{
    const buffer_interface *i = starpu_data_get_interface_on_node(handle, node);
    int ret =
        starpu_interface_copy((uintptr_t)ptr, 0, STARPU_MAIN_RAM, i->ptr, 0, node, count, NULL);
    starpu_free_flags(ptr, count, 0);
    return ret;
}

static const struct starpu_data_copy_methods copy_methods = {.any_to_any = on_copy};

/* StarPU numbers interfaces at run time: number_interface fills in the number. */
static struct starpu_data_interface_ops ops = {
    .register_data_handle = on_register,
    .allocate_data_on_node = on_allocate,
    .free_data_on_node = on_free,
    .copy_methods = &copy_methods,
    .to_pointer = to_pointer,
    .get_size = get_size,
    .footprint = footprint,
    .alloc_footprint = alloc_footprint,
    .compare = same_size,
    .alloc_compare = same_owner,
    .display = display,
    .describe = describe,
    .pack_data = pack,
    .unpack_data = unpack,
    .interfaceid = STARPU_UNKNOWN_INTERFACE_ID,
    .interface_size = sizeof(buffer_interface),
    .dontcache = 1,
    .name = "gridpipe buffer",
};

static void number_interface(void)
{
    ops.interfaceid = (enum starpu_data_interface_id)starpu_data_interface_get_next_id();
}

/* Allocating on a GPU's node, StarPU makes that GPU the current one of the calling thread. Here
 * that is the application's thread, which gets its own current GPU back. -1: there is none to give
 * back. */
static int current_gpu(unsigned node)
{
#ifdef GPP__STARPU_CUDA
    return starpu_node_get_kind(node) == STARPU_CUDA_RAM ? gpp__gpu_current() : -1;
#else
    (void)node;
    return -1;
#endif
}

static void restore_gpu(int gpu)
{
#ifdef GPP__STARPU_CUDA
    gpp__gpu_restore(gpu);
#else
    (void)gpu;
#endif
}

static void free_reserved(gpp__handle *b)
{
    for (int c = 0; c < 2; c++) {
        int gpu = current_gpu(b->charge[c].node);
        if (b->charge[c].reserved)
            starpu_free_on_node(b->charge[c].node, b->charge[c].reserved, b->bytes);
        restore_gpu(gpu);
        b->charge[c].reserved = 0;
    }
}

gpp_status gpp__handle_register(gpp__handle *b, const char *name, gpp_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, number_interface);
    for (int c = 0; c < 2; c++) {
        if (!b->charge[c].meter)
            continue;
        int gpu = current_gpu(b->charge[c].node);
        b->charge[c].reserved = starpu_malloc_on_node(b->charge[c].node, b->bytes);
        restore_gpu(gpu);
        atomic_store(&b->charge[c].in_use, false);
        if (!b->charge[c].reserved) {
            free_reserved(b);
            return gpp__fail(err, GPP_ENOMEM, "%zu bytes for %s", b->bytes, name);
        }
    }
    buffer_interface i = {.bytes = b->bytes, .owner = b};
    starpu_data_register(&b->handle, -1, &i, &ops);
    starpu_data_set_name(b->handle, name);
    return GPP_OK;
}

void gpp__handle_unregister(gpp__handle *b)
{
    if (!b->handle)
        return;
    starpu_data_unregister_no_coherency(b->handle);
    free_reserved(b);
    b->handle = NULL;
}

/* Writing on the host makes the device's copy invalid. The next copy is requested here, because a
 * task's own request comes late: when all its other data is there, too. */
gpp_status gpp__handle_fetch(gpp__handle *b, const void *data, size_t bytes, gpp_error *err)
{
    assert(b->fetches && bytes <= b->bytes && (data || !bytes));
    if (starpu_data_acquire_on_node(b->handle, STARPU_MAIN_RAM, STARPU_W))
        return gpp__fail(err, GPP_ERUNTIME,
                         "a tensor for a device cannot be acquired here (inside a task?)");
    b->source = (uintptr_t)data;
    b->source_bytes = bytes;
    buffer_interface *i = starpu_data_get_interface_on_node(b->handle, STARPU_MAIN_RAM);
    i->ptr = source_of(b);
    starpu_data_release_on_node(b->handle, STARPU_MAIN_RAM);
    starpu_data_prefetch_on_node(b->handle, b->charge[0].node, 1);
    return GPP_OK;
}

void gpp__handle_wait(gpp__handle *b)
{
    int node = (int)b->charge[0].node;
    if (b->handle && !starpu_data_acquire_on_node(b->handle, node, STARPU_R))
        starpu_data_release_on_node(b->handle, node);
}

char *gpp__handle_data(const gpp__handle *b)
{
    return gpp__handle_pointer(any_interface(b->handle));
}

char *gpp__handle_pointer(void *interface)
{
    return (char *)((buffer_interface *)interface)->ptr;
}

size_t gpp__handle_bytes(void *interface)
{
    return ((buffer_interface *)interface)->bytes;
}

static gpp__note *note_of(const buffer_interface *i)
{
    bool has = i->owner->noted && i->ptr;
    return has ? (gpp__note *)(i->ptr + i->bytes - GPP__NOTE_BYTES) : NULL;
}

gpp__note *gpp__handle_note(void *interface)
{
    return note_of(interface);
}

const gpp__note *gpp__handle_host_note(void *interface)
{
    return note_of(any_interface(((buffer_interface *)interface)->owner->handle));
}

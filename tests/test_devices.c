/*
 * tests/test_devices.c: which cores or GPUs partitions get, on synthetic machines.
 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/devices.h"

enum { MOST = 64 };

static hwloc_topology_t machine(const char *description)
{
    hwloc_topology_t topology;
    cr_assert_eq(hwloc_topology_init(&topology), 0);
    if (description)
        cr_assert_eq(hwloc_topology_set_synthetic(topology, description), 0, "%s", description);
    cr_assert_eq(hwloc_topology_load(topology), 0);
    return topology;
}

/* --- automatic -------------------------------------------------------------------------------- */

static const struct placement {
    const char *why, *machine;
    int partitions, most, devices;
    const char *name[8];
    int device_of[8];
} placements[] = {
    {"a partition for each NUMA node",
     "numa:2 l3:2 core:4 pu:2",
     2,
     MOST,
     2,
     {"cpu:0-7", "cpu:8-15"},
     {0, 1}},
    {"a partition for each shared cache",
     "numa:2 l3:2 core:4 pu:2",
     4,
     MOST,
     4,
     {"cpu:0-3", "cpu:4-7", "cpu:8-11", "cpu:12-15"},
     {0, 1, 2, 3}},
    {"three on two nodes: no set crosses them",
     "numa:2 l3:2 core:4 pu:2",
     3,
     MOST,
     3,
     {"cpu:0-3", "cpu:4-7", "cpu:8-15"},
     {0, 1, 2}},
    {"one partition has everything", "pack:2 core:3 pu:1", 1, MOST, 1, {"cpu:0-5"}, {0}},
    {"one core each",
     "core:4 pu:2",
     4,
     MOST,
     4,
     {"cpu:0", "cpu:1", "cpu:2", "cpu:3"},
     {0, 1, 2, 3}},
    {"uneven shares", "core:5 pu:1", 2, MOST, 2, {"cpu:0-1", "cpu:2-4"}, {0, 1}},
    {"three caches for two", "l3:3 core:2 pu:1", 2, MOST, 2, {"cpu:0-1", "cpu:2-5"}, {0, 1}},
    {"fewer cores than partitions: neighbours share",
     "core:2 pu:1",
     5,
     MOST,
     2,
     {"cpu:0", "cpu:1"},
     {0, 0, 0, 1, 1}},
    {"fewer workers than partitions",
     "numa:2 core:8 pu:1",
     4,
     2,
     2,
     {"cpu:0-7", "cpu:8-15"},
     {0, 0, 1, 1}},
    {"one worker has all cores", "core:4 pu:1", 3, 1, 1, {"cpu:0-3"}, {0, 0, 0}},
    {"one core with two threads is one core", "core:1 pu:2", 2, MOST, 1, {"cpu:0"}, {0, 0}},
};

Test(devices, cores_are_split_along_nodes_and_caches)
{
    for (size_t k = 0; k < sizeof placements / sizeof *placements; k++) {
        const struct placement *c = &placements[k];
        hwloc_topology_t topology = machine(c->machine);
        gpp__device *devices;
        int count, device_of[8];
        gpp_error err = GPP_ERROR_INIT;
        cr_assert_eq(gpp__devices_new(topology, NULL, 0, c->partitions, c->most, &devices, &count,
                                      device_of, &err),
                     GPP_OK, "%s: %s", c->why, err.msg);
        cr_assert_eq(count, c->devices, "%s: %d devices", c->why, count);
        for (int d = 0; d < count; d++)
            cr_expect_str_eq(devices[d].name, c->name[d], "%s: %s", c->why, devices[d].name);
        for (int j = 0; j < c->partitions; j++)
            cr_expect_eq(device_of[j], c->device_of[j], "%s: partition %d", c->why, j);
        gpp__devices_free(devices, count);
        hwloc_topology_destroy(topology);
    }
}

/* Every core is in one device, every device has cores, their hardware threads are the machine's. */
static void expect_all_cores_once(const char *description, int partitions, int most)
{
    hwloc_topology_t topology = machine(description);
    gpp__device *devices;
    int count, device_of[MOST], cores = 0;
    hwloc_bitmap_t seen = hwloc_bitmap_alloc();
    cr_assert_eq(
        gpp__devices_new(topology, NULL, 0, partitions, most, &devices, &count, device_of, NULL),
        GPP_OK);
    for (int d = 0; d < count; d++) {
        cr_expect_geq(devices[d].cores, 1, "%s: %d of %d", description, d, partitions);
        for (int k = 0; k < devices[d].cores; k++, cores++) {
            cr_expect_not(hwloc_bitmap_intersects(seen, devices[d].cpuset[k]));
            hwloc_bitmap_or(seen, seen, devices[d].cpuset[k]);
            cr_expect(k == 0 || devices[d].core[k - 1] < devices[d].core[k]);
        }
    }
    cr_expect(hwloc_bitmap_isequal(seen, hwloc_topology_get_topology_cpuset(topology)), "%s for %d",
              description, partitions);
    cr_expect_eq(cores, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE));
    for (int j = 0; j < partitions; j++)
        cr_expect(j == 0
                      ? device_of[j] == 0
                      : device_of[j] == device_of[j - 1] || device_of[j] == device_of[j - 1] + 1);
    cr_expect_eq(device_of[partitions - 1], count - 1);
    hwloc_bitmap_free(seen);
    gpp__devices_free(devices, count);
    hwloc_topology_destroy(topology);
}

Test(devices, every_core_is_used_once)
{
    static const char *const machines[] = {
        "core:1 pu:1",
        "core:2 pu:1",
        "core:7 pu:2",
        "pack:2 l3:3 core:2 pu:2",
        "numa:2 l3:2 core:4 pu:2",
        "pack:2 numa:4 l2:4 core:2 pu:2",
    };
    for (size_t k = 0; k < sizeof machines / sizeof *machines; k++)
        for (int partitions = 1; partitions <= 20; partitions++)
            for (int most = 1; most <= 20; most += 3)
                expect_all_cores_once(machines[k], partitions, most);
}

Test(devices, this_machine_has_a_device)
{
    hwloc_topology_t topology = machine(NULL);
    gpp__device *devices;
    int count, device_of[2];
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp__devices_new(topology, NULL, 0, 2, MOST, &devices, &count, device_of, &err),
                 GPP_OK, "%s", err.msg);
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0)
        for (int d = 0; d < count; d++)
            for (int k = 0; k < devices[d].cores; k++)
                cr_expect(hwloc_bitmap_isincluded(devices[d].cpuset[k], bound));
    hwloc_bitmap_free(bound);
    gpp__devices_free(devices, count);
    hwloc_topology_destroy(topology);
}

/* --- by specification, on four cores ---------------------------------------------------------- */

static const struct wish {
    const char *why, *spec[4];
    int count, partitions, most;
    gpp_status status;
    const char *msg; /* of a failure */
    int devices;
    const char *name[4];
    int device_of[4];
} wishes[] = {
    {"a core each", {"cpu:0", "cpu:3"}, 2, 2, MOST, GPP_OK, NULL, 2, {"cpu:0", "cpu:3"}, {0, 1}},
    {"lists and ranges",
     {"cpu:3,0-1", "cpu:2"},
     2,
     2,
     MOST,
     GPP_OK,
     NULL,
     2,
     {"cpu:0-1,3", "cpu:2"},
     {0, 1}},
    {"every core", {"cpu"}, 1, 1, MOST, GPP_OK, NULL, 1, {"cpu:0-3"}, {0}},
    {"the same device in two words",
     {"cpu", "cpu:0-3"},
     2,
     2,
     1,
     GPP_OK,
     NULL,
     1,
     {"cpu:0-3"},
     {0, 0}},
    {"there and back, by first mention",
     {"cpu:1", "cpu:0", "cpu:1"},
     3,
     3,
     2,
     GPP_OK,
     NULL,
     2,
     {"cpu:1", "cpu:0"},
     {0, 1, 0}},
    {"surplus entries are ignored, whatever they say",
     {"cpu:1", "gpu"},
     2,
     1,
     1,
     GPP_OK,
     NULL,
     1,
     {"cpu:1"},
     {0}},
    {"too few",
     {"cpu:0"},
     1,
     4,
     MOST,
     GPP_ENODEV,
     "too few devices to hold the given partitions (devices: 1, partitions: 4)",
     0,
     {0},
     {0}},
    {"no such core",
     {"cpu:4"},
     1,
     1,
     MOST,
     GPP_ENODEV,
     "device \"cpu:4\": no core 4 (this process may use cores 0-3)",
     0,
     {0},
     {0}},
    {"a range past the end",
     {"cpu:2-2000000000"},
     1,
     1,
     MOST,
     GPP_ENODEV,
     "no core 4",
     0,
     {0},
     {0}},
    {"a number past counting",
     {"cpu:99999999999999999999"},
     1,
     1,
     MOST,
     GPP_ENODEV,
     "no core",
     0,
     {0},
     {0}},
    {"more devices than workers",
     {"cpu:0", "cpu:1", "cpu:2"},
     3,
     3,
     2,
     GPP_ENODEV,
     "device \"cpu:2\" is one too many: there are workers for 2",
     0,
     {0},
     {0}},
    {"overlap",
     {"cpu:0-1", "cpu:1-2"},
     2,
     2,
     MOST,
     GPP_EINVAL,
     "device \"cpu:1-2\" overlaps device \"cpu:0-1\"",
     0,
     {0},
     {0}},
    {"a core twice", {"cpu:0,0"}, 1, 1, MOST, GPP_EINVAL, "core 0 is named twice", 0, {0}, {0}},
    {"nothing",
     {""},
     1,
     1,
     MOST,
     GPP_EINVAL,
     "expected \"cpu\", \"cpu:K\", \"cpu:A-B,C\" or \"cuda:K\"",
     0,
     {0},
     {0}},
    {"no list", {"cpu:"}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
    {"a word", {"cpu:x"}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
    {"a sign", {"cpu:-1"}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
    {"an open range", {"cpu:1-"}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
    {"a range backwards", {"cpu:3-1"}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
    {"a comma at the end", {"cpu:1,"}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
    {"a tail", {"cpu:1 "}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
    {"another kind", {"gpu:0"}, 1, 1, MOST, GPP_EINVAL, "device \"gpu:0\": expected", 0, {0}, {0}},
    {"a GPU where only cores are offered",
     {"cuda:0"},
     1,
     1,
     MOST,
     GPP_EUNSUPPORTED,
     "device \"cuda:0\": only cores can be used here",
     0,
     {0},
     {0}},
    {"no name", {NULL}, 1, 1, MOST, GPP_EINVAL, "expected", 0, {0}, {0}},
};

Test(devices, named_cores_are_taken_or_refused_with_the_reason)
{
    hwloc_topology_t topology = machine("core:4 pu:2");
    for (size_t k = 0; k < sizeof wishes / sizeof *wishes; k++) {
        const struct wish *c = &wishes[k];
        gpp__device *devices;
        int count, device_of[4];
        gpp_error err = GPP_ERROR_INIT;
        gpp_status status = gpp__devices_new(topology, c->spec, c->count, c->partitions, c->most,
                                             &devices, &count, device_of, &err);
        cr_expect_eq(status, c->status, "%s: %s", c->why, err.msg);
        cr_expect_eq(count, c->devices, "%s", c->why);
        if (status != GPP_OK) {
            cr_expect(strstr(err.msg, c->msg), "%s: %s", c->why, err.msg);
            cr_expect_null(devices);
            continue;
        }
        for (int d = 0; d < count; d++)
            cr_expect_str_eq(devices[d].name, c->name[d], "%s: %s", c->why, devices[d].name);
        for (int j = 0; j < c->partitions; j++)
            cr_expect_eq(device_of[j], c->device_of[j], "%s", c->why);
        gpp__devices_free(devices, count);
    }
    hwloc_topology_destroy(topology);
}

Test(devices, a_long_list_of_cores_has_a_name_that_ends)
{
    hwloc_topology_t topology = machine("core:128 pu:1");
    char spec[512] = "cpu:0";
    const char *specs[] = {spec};
    for (int core = 2; core < 128; core += 2)
        snprintf(spec + strlen(spec), sizeof spec - strlen(spec), ",%d", core);
    gpp__device *devices;
    int count, device_of[1];
    cr_assert_eq(gpp__devices_new(topology, specs, 1, 1, 1, &devices, &count, device_of, NULL),
                 GPP_OK);
    cr_expect_eq(devices[0].cores, 64);
    cr_expect_str_eq(devices[0].name + strlen(devices[0].name) - 3, "...");
    gpp__devices_free(devices, count);
    hwloc_topology_destroy(topology);
}

/* --- GPUs: chains ----------------------------------------------------------------------------- */

enum { NEAR = 1, FAR = 9 };

static const struct chain_case {
    const char *why;
    int count, length, distance[36], chain[6];
} chains[] = {
    {"nothing to choose", 1, 1, {0}, {0}},
    {"equal distances keep the numbers' order",
     4,
     4,
     {0, 5, 5, 5, 5, 0, 5, 5, 5, 5, 0, 5, 5, 5, 5, 0},
     {0, 1, 2, 3}},
    {"two pairs, numbered crosswise: one far step, not three",
     4,
     4,
     {0, FAR, NEAR, FAR, FAR, 0, FAR, NEAR, NEAR, FAR, 0, FAR, FAR, NEAR, FAR, 0},
     {0, 2, 1, 3}},
    {"fewer than there are: the near pair, not the first two",
     4,
     2,
     {0, FAR, FAR, FAR, FAR, 0, FAR, NEAR, FAR, FAR, 0, FAR, FAR, NEAR, FAR, 0},
     {1, 3}},
    {"always on to the nearest would cost 1 + 2 + 100",
     4,
     4,
     {0, 1, 3, 4, 1, 0, 2, 3, 3, 2, 0, 100, 4, 3, 100, 0},
     {2, 0, 1, 3}},
    {"a ring is cut once",
     6,
     6,
     {0, 9, 9, 1, 9, 1, 9, 0, 1, 9, 1, 9, 9, 1, 0, 1, 9, 9,
      1, 9, 1, 0, 9, 9, 9, 1, 9, 9, 0, 1, 1, 9, 9, 9, 1, 0},
     {0, 3, 2, 1, 4, 5}},
    {"none", 3, 0, {0, 1, 1, 1, 0, 1, 1, 1, 0}, {0}},
};

Test(devices, neighbours_in_a_chain_are_as_near_as_can_be)
{
    for (size_t k = 0; k < sizeof chains / sizeof *chains; k++) {
        const struct chain_case *c = &chains[k];
        int chain[6];
        cr_assert_eq(gpp__chain(c->count, c->distance, c->length, chain, NULL), GPP_OK);
        for (int v = 0; v < c->length; v++)
            cr_expect_eq(chain[v], c->chain[v], "%s: %d at %d", c->why, chain[v], v);
    }
}

static int length_of(int count, const int distance[], const int chain[], int length)
{
    int total = 0;
    for (int k = 1; k < length; k++)
        total += distance[chain[k - 1] * count + chain[k]];
    return total;
}

/* All chains that begin with chain[0 ... at-1]: the least length. */
static int try_all(int count, const int distance[], int chain[], int at, int length)
{
    if (at == length)
        return length_of(count, distance, chain, length);
    int least = INT_MAX;
    for (int v = 0; v < count; v++) {
        bool used = false;
        for (int k = 0; k < at; k++)
            used |= chain[k] == v;
        if (used)
            continue;
        chain[at] = v;
        int total = try_all(count, distance, chain, at + 1, length);
        least = total < least ? total : least;
    }
    return least;
}

static void draw_distances(int count, unsigned *seed, int distance[])
{
    for (int a = 0; a < count; a++)
        for (int b = 0; b <= a; b++) {
            *seed = *seed * 1664525u + 1013904223u;
            distance[a * count + b] = distance[b * count + a] = a == b ? 0 : 1 + *seed / 65536 % 20;
        }
}

Test(devices, no_chain_is_shorter)
{
    unsigned seed = 1;
    for (int count = 1; count <= 6; count++)
        for (int length = 1; length <= count; length++)
            for (int draw = 0; draw < 20; draw++) {
                int distance[36], chain[6], other[6];
                draw_distances(count, &seed, distance);
                cr_assert_eq(gpp__chain(count, distance, length, chain, NULL), GPP_OK);
                cr_expect_eq(length_of(count, distance, chain, length),
                             try_all(count, distance, other, 0, length), "%d of %d", length, count);
            }
}

/* More than are tried exactly: four boards of four, numbered across boards. */
Test(devices, a_long_chain_leaves_each_board_once)
{
    enum { COUNT = 16 };
    int distance[COUNT * COUNT], chain[COUNT];
    for (int a = 0; a < COUNT; a++)
        for (int b = 0; b < COUNT; b++)
            distance[a * COUNT + b] = a == b ? 0 : a % 4 == b % 4 ? NEAR : FAR;
    cr_assert_eq(gpp__chain(COUNT, distance, COUNT, chain, NULL), GPP_OK);
    cr_expect_eq(length_of(COUNT, distance, chain, COUNT), 12 * NEAR + 3 * FAR);
    unsigned seen = 0;
    for (int k = 0; k < COUNT; k++)
        seen |= 1u << chain[k];
    cr_expect_eq(seen, 0xffffu);
}

/* --- GPUs: distances -------------------------------------------------------------------------- */

/* Two packages with two cores and a NUMA node each. Below the first one root complex with a switch
 * (buses 2 and 3) and a GPU beside it (4), and another root complex (11); below the second one GPU
 * (21). */
#define OBJECT(type, id, cores, node)                                                              \
    "<object type=\"" type "\" os_index=\"" id "\" cpuset=\"" cores "\" complete_cpuset=\"" cores  \
    "\" nodeset=\"" node "\" complete_nodeset=\"" node "\""
#define CORE(id, cores, node)                                                                      \
    OBJECT("Core", id, cores, node) ">" OBJECT("PU", id, cores, node) "/></object>"
#define PACKAGE(id, cores, node)                                                                   \
    OBJECT("Package", id, cores, node)                                                             \
    ">" OBJECT("NUMANode", id, cores, node) " local_memory=\"1073741824\"/>"
#define ROOT(buses)                                                                                \
    "<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" buses "]\">"
#define SWITCH(bus, buses)                                                                         \
    "<object type=\"Bridge\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[" buses            \
    "]\" pci_busid=\"0000:" bus ":01.0\" pci_type=\"0604 [8086:0001] [0000:0000] 00\" "            \
    "pci_link_speed=\"0.0\">"
#define GPU(bus)                                                                                   \
    "<object type=\"PCIDev\" pci_busid=\"0000:" bus                                                \
    ":00.0\" pci_type=\"0302 [10de:0001] [0000:0000] 00\" pci_link_speed=\"0.0\"/>"
#define END "</object>"
/* clang-format off */
static const char boards[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
    "<topology version=\"2.0\">"
    OBJECT("Machine", "0", "0xf", "0x3") " allowed_cpuset=\"0xf\" allowed_nodeset=\"0x3\">"
        PACKAGE("0", "0x3", "0x1")
            CORE("0", "0x1", "0x1") CORE("1", "0x2", "0x1")
            ROOT("00-05")
                SWITCH("00", "01-03") GPU("02") GPU("03") END
                GPU("04")
            END
            ROOT("10-12") GPU("11") END
        END
        PACKAGE("1", "0xc", "0x2")
            CORE("2", "0x4", "0x2") CORE("3", "0x8", "0x2")
            ROOT("20-22") GPU("21") END
        END
    END
    "</topology>";
/* clang-format on */

static hwloc_topology_t machine_with_gpus(void)
{
    hwloc_topology_t topology;
    cr_assert_eq(hwloc_topology_init(&topology), 0);
    cr_assert_eq(hwloc_topology_set_xmlbuffer(topology, boards, (int)sizeof boards), 0);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    cr_assert_eq(hwloc_topology_load(topology), 0);
    return topology;
}

/* GPUs on the given buses, numbered in that order. */
static gpp__gpus gpus_on(hwloc_topology_t topology, int count, const unsigned bus[])
{
    gpp__gpus gpus = {.count = count, .status = GPP_ENODEV};
    gpp__pci pci[GPP__MAX_GPUS];
    for (int k = 0; k < count; k++) {
        gpus.ordinal[k] = k;
        pci[k] = (gpp__pci){.bus = bus[k]};
    }
    cr_assert_eq(gpp__gpus_measure(&gpus, topology, pci, NULL), GPP_OK);
    return gpus;
}

Test(devices, distance_grows_from_switch_to_machine)
{
    static const unsigned bus[] = {0x02, 0x03, 0x04, 0x11, 0x21, 0x77};
    hwloc_topology_t topology = machine_with_gpus();
    gpp__gpus g = gpus_on(topology, 6, bus);
    for (int k = 0; k < 6; k++) {
        cr_expect_eq(g.distance[k][k], 0);
        for (int other = 0; other < 6; other++)
            cr_expect_eq(g.distance[k][other], g.distance[other][k]);
    }
    for (int further = 2; further <= 4; further++)
        cr_expect_lt(g.distance[0][further - 1], g.distance[0][further],
                     "from bus 2: %x is no nearer than %x", bus[further - 1], bus[further]);
    cr_expect_eq(g.distance[0][5], g.distance[0][4], "one that hwloc does not know is far");
    gpp__gpus_release(&g);
    hwloc_topology_destroy(topology);
}

static const struct gpu_case {
    const char *why;
    int gpus;
    unsigned bus[5];
    int partitions, devices;
    const char *name[6];
    int device_of[6];
} gpu_cases[] = {
    {"one for all", 1, {0x02}, 3, 1, {"cuda:0"}, {0, 0, 0}},
    {"one each, numbered as they are near",
     3,
     {0x02, 0x03, 0x04},
     3,
     3,
     {"cuda:0", "cuda:1", "cuda:2"},
     {0, 1, 2}},
    {"numbered across packages: neighbours by place, not by number",
     4,
     {0x02, 0x21, 0x03, 0x11},
     4,
     4,
     {"cuda:0", "cuda:2", "cuda:3", "cuda:1"},
     {0, 1, 2, 3}},
    {"two of four: those at one switch",
     4,
     {0x21, 0x02, 0x11, 0x03},
     2,
     2,
     {"cuda:1", "cuda:3"},
     {0, 1}},
    {"more partitions than GPUs: neighbours share",
     2,
     {0x21, 0x02},
     5,
     2,
     {"cuda:0", "cuda:1"},
     {0, 0, 0, 1, 1}},
};

Test(devices, partitions_follow_each_other_over_near_gpus)
{
    hwloc_topology_t topology = machine_with_gpus();
    for (size_t k = 0; k < sizeof gpu_cases / sizeof *gpu_cases; k++) {
        const struct gpu_case *c = &gpu_cases[k];
        gpp__gpus gpus = gpus_on(topology, c->gpus, c->bus);
        gpp__offer offer = {topology, MOST, &gpus};
        gpp__device *devices;
        int count, device_of[6], ordinal[GPP__MAX_GPUS];
        gpp_error err = GPP_ERROR_INIT;
        cr_assert_eq(
            gpp__devices_choose(&offer, NULL, 0, c->partitions, &devices, &count, device_of, &err),
            GPP_OK, "%s: %s", c->why, err.msg);
        cr_assert_eq(count, c->devices, "%s: %d devices", c->why, count);
        cr_expect(gpp__devices_may_be_gpus(NULL, 0, c->partitions));
        cr_expect_eq(gpp__devices_gpus(&gpus, NULL, 0, c->partitions, ordinal), c->gpus,
                     "all are started: another pipe may want the others");
        for (int d = 0; d < count; d++) {
            cr_expect_str_eq(devices[d].name, c->name[d], "%s: %s", c->why, devices[d].name);
            cr_expect_eq(devices[d].kind, GPP__DEVICE_CUDA);
            cr_expect(devices[d].ordinal >= 0 && devices[d].ordinal < c->gpus);
        }
        for (int j = 0; j < c->partitions; j++)
            cr_expect_eq(device_of[j], c->device_of[j], "%s: partition %d", c->why, j);
        gpp__devices_free(devices, count);
        gpp__gpus_release(&gpus);
    }
    hwloc_topology_destroy(topology);
}

/* --- GPUs: by specification, on four cores and GPUs 0, 1 and 3 -------------------------------- */

static const struct gpu_wish {
    const char *why, *spec[4];
    int partitions;
    gpp_status status;
    const char *msg;
    int devices;
    const char *name[4];
    int device_of[4], started;
} gpu_wishes[] = {
    {"a GPU each", {"cuda:3", "cuda:0"}, 2, GPP_OK, NULL, 2, {"cuda:3", "cuda:0"}, {0, 1}, 2},
    {"several partitions on one",
     {"cuda:1", "cuda:1", "cuda:1"},
     3,
     GPP_OK,
     NULL,
     1,
     {"cuda:1"},
     {0, 0, 0},
     1},
    {"beside cores",
     {"cpu:0-1", "cuda:0", "cpu:2", "cuda:0"},
     4,
     GPP_OK,
     NULL,
     3,
     {"cpu:0-1", "cuda:0", "cpu:2"},
     {0, 1, 2, 1},
     1},
    {"cores alone start none", {"cpu", "cpu"}, 2, GPP_OK, NULL, 1, {"cpu:0-3"}, {0, 0}, 0},
    {"a number that is not there",
     {"cuda:2"},
     1,
     GPP_ENODEV,
     "device \"cuda:2\": no GPU 2 (there are GPUs 0, 1 and 3)",
     0,
     {0},
     {0},
     0},
    {"a number past counting", {"cuda:99999999999"}, 1, GPP_ENODEV, "no GPU", 0, {0}, {0}, 0},
    {"no number", {"cuda:"}, 1, GPP_EINVAL, "expected", 0, {0}, {0}, 0},
    {"no colon", {"cuda"}, 1, GPP_EINVAL, "expected", 0, {0}, {0}, 0},
    {"a range", {"cuda:0-1"}, 1, GPP_EINVAL, "expected", 0, {0}, {0}, 0},
    {"a tail", {"cuda:0 "}, 1, GPP_EINVAL, "expected", 0, {0}, {0}, 0},
    {"cores that do not exist beside a GPU",
     {"cuda:0", "cpu:9"},
     2,
     GPP_ENODEV,
     "no core 9",
     0,
     {0},
     {0},
     1},
};

Test(devices, named_gpus_are_taken_or_refused_with_the_reason)
{
    hwloc_topology_t topology = machine("core:4 pu:1");
    gpp__gpus gpus = {.count = 3, .ordinal = {0, 1, 3}, .status = GPP_ENODEV};
    gpp__offer offer = {topology, 2, &gpus};
    for (size_t k = 0; k < sizeof gpu_wishes / sizeof *gpu_wishes; k++) {
        const struct gpu_wish *c = &gpu_wishes[k];
        gpp__device *devices;
        int count, device_of[4], ordinal[GPP__MAX_GPUS];
        gpp_error err = GPP_ERROR_INIT;
        gpp_status status = gpp__devices_choose(&offer, c->spec, c->partitions, c->partitions,
                                                &devices, &count, device_of, &err);
        cr_expect_eq(status, c->status, "%s: %d %s", c->why, status, err.msg);
        cr_expect_eq(count, c->devices, "%s", c->why);
        cr_expect_eq(gpp__devices_gpus(&gpus, c->spec, c->partitions, c->partitions, ordinal),
                     c->started, "%s", c->why);
        if (c->started)
            cr_expect(gpp__devices_may_be_gpus(c->spec, c->partitions, c->partitions));
        cr_expect(!status == !c->msg && (!c->msg || strstr(err.msg, c->msg)), "%s: %s", c->why,
                  err.msg);
        for (int d = 0; d < count; d++)
            cr_expect_str_eq(devices[d].name, c->name[d], "%s: %s", c->why, devices[d].name);
        for (int j = 0; count && j < c->partitions; j++)
            cr_expect_eq(device_of[j], c->device_of[j], "%s", c->why);
        gpp__devices_free(devices, count);
    }
    hwloc_topology_destroy(topology);
}

Test(devices, where_there_is_no_gpu_the_reason_is_passed_on_and_cores_are_the_default)
{
    static const char *const wish[] = {"cuda:0"};
    hwloc_topology_t topology = machine("core:4 pu:1");
    gpp__gpus none = {.status = GPP_EUNSUPPORTED, .why = "this gridpipe was built without CUDA"};
    gpp__offer offer = {topology, MOST, &none};
    gpp__device *devices;
    int count, device_of[2];
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__devices_choose(&offer, wish, 1, 1, &devices, &count, device_of, &err),
                 GPP_EUNSUPPORTED);
    cr_expect_str_eq(err.msg, "device \"cuda:0\": this gridpipe was built without CUDA");
    cr_expect_eq(gpp__devices_choose(&offer, NULL, 0, 2, &devices, &count, device_of, NULL),
                 GPP_OK);
    cr_expect_str_eq(devices[0].name, "cpu:0-1");
    cr_expect_eq(devices[0].kind, GPP__DEVICE_CPU);
    gpp__devices_free(devices, count);
    hwloc_topology_destroy(topology);
}

Test(devices, a_list_of_cores_asks_for_no_gpu)
{
    static const char *const wish[] = {"cpu:0", "cpu", "cuda:0"};
    cr_expect_not(gpp__devices_may_be_gpus(wish, 2, 2));
    cr_expect_not(gpp__devices_may_be_gpus(wish, 3, 2), "no partition has the third entry");
    cr_expect(gpp__devices_may_be_gpus(wish, 3, 3));
}

Test(devices, the_thread_that_serves_a_gpu_has_a_core_near_it)
{
    static const unsigned bus[] = {0x21, 0x02, 0x03, 0x04};
    static const struct {
        unsigned long usable;
        int core[4];
        const char *why;
    } cases[] = {
        {0xf, {3, 1, 0, 1}, "from the last core of the package down, then again"},
        {0x5, {2, 0, 0, 0}, "only cores that may be used"},
        {0x3, {1, 1, 0, 1}, "no near core: any"},
    };
    hwloc_topology_t topology = machine_with_gpus();
    gpp__gpus gpus = gpus_on(topology, 4, bus);
    hwloc_bitmap_t usable = hwloc_bitmap_alloc();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        hwloc_bitmap_from_ulong(usable, cases[c].usable);
        for (int k = 0; k < 4; k++)
            cr_expect_eq(gpp__gpus_core(&gpus, k, topology, usable), cases[c].core[k], "%s: GPU %d",
                         cases[c].why, k);
    }
    hwloc_bitmap_free(usable);
    gpp__gpus_release(&gpus);
    hwloc_topology_destroy(topology);
}

/*
 * tests/test_devices.c: which cores partitions get, on synthetic machines.
 */
#include <criterion/criterion.h>
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

/* --- automatic */

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

/* --- by specification, on four cores */

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
     "expected \"cpu\", \"cpu:K\" or \"cpu:A-B,C\"",
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
    {"another kind",
     {"cuda:0"},
     1,
     1,
     MOST,
     GPP_EINVAL,
     "device \"cuda:0\": expected",
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

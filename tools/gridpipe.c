/*
 * tools/gridpipe.c: the `gridpipe` command: finds the subcommand, or says which there are.
 */
#include <string.h>

#include "tools/tools.h"

static const tool_command *const commands[] = {&tool_run,  &tool_check,         &tool_train,
                                               &tool_info, &tool_model,         &tool_profile,
                                               &tool_plan, &tool_trace_command, NULL};

static const char before[] =
    "Usage: gridpipe COMMAND [OPTION]... [ARGUMENT]...\n"
    "Trains sequential neural networks by pipeline parallelism, and checks that it does.\n"
    "\n";
static const char behind[] =
    "\n"
    "\"gridpipe help COMMAND\" lists a command's options; gridpipe(1) has examples and the model\n"
    "text.\n"
    "\n"
    "Exit status: 0 done; 1 a comparison or a run failed; 2 the command line is wrong.\n";

static int help(void)
{
    fputs(before, stdout);
    for (int k = 0; commands[k]; k++)
        printf("  %-8s %s\n", commands[k]->name, commands[k]->summary);
    fputs("  help     What a command does, and its options\n", stdout);
    fputs(behind, stdout);
    return tool_flushed(TOOL_DONE);
}

static const tool_command *find(const char *name)
{
    for (int k = 0; commands[k]; k++)
        if (!strcmp(commands[k]->name, name))
            return commands[k];
    tool_fail(TOOL_USAGE, "\"%s\" is no command; \"gridpipe help\" lists them", name);
    return NULL;
}

static int help_on(int argc, char *argv[])
{
    if (argc < 3)
        return help();
    const tool_command *command = find(argv[2]);
    char option[] = "--help", *of_command[] = {argv[2], option, NULL};
    return command ? command->run(2, of_command) : TOOL_USAGE;
}

int main(int argc, char *argv[])
{
    if (argc < 2)
        return tool_fail(TOOL_USAGE, "which command? \"gridpipe help\" lists them");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return help();
    if (!strcmp(argv[1], "help"))
        return help_on(argc, argv);
    if (!strcmp(argv[1], "--version")) {
        printf("gridpipe %s\n", gpp_version());
        return tool_flushed(TOOL_DONE);
    }
    const tool_command *command = find(argv[1]);
    int status = command ? tool_ranks_begin(command) : TOOL_USAGE;
    return status < 0 ? tool_ranks_end(command->run(argc - 1, argv + 1)) : status;
}

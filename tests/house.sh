#!/usr/bin/env bash
# The house is in order: includes and calls between rooms point down only, every file that a comment
# or a page names exists, and so does every test that tests/PARITY.md names. Prints what is not so, a
# line each; the last line counts them.
#
#   bash tests/house.sh [BUILD]    BUILD, build/dev by default, has the library's object files
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
objects=${1-build/dev}/CMakeFiles/gridpipe_objects.dir
[[ -d $objects ]] || { echo "nothing is built in $objects" >&2; exit 2; }
git rev-parse --git-dir >/dev/null 2>&1 || { echo "no git repository to look at"; exit 77; }

# From the ground up. A room uses the rooms of the lines above its own, not those beside it.
rooms='
base
codelets sched
balance
graph/model graph/data
graph/recipe
graph/plan
graph/search graph/trace
graph/run
mpi
'

# Reads lines "what FROM TO", two paths of the repository; prints those that do not point down.
upward() {
    awk -v rooms="$rooms" '
        BEGIN {
            floors = split(rooms, line, "\n")
            for (i = 1; i <= floors; i++) {
                n = split(line[i], name, " ")
                for (k = 1; k <= n; k++)
                    floor[name[k]] = i
            }
        }
        function room(path, part) {
            split(path, part, "/")
            return part[1] == "graph" ? "graph/" part[2] : part[1]
        }
        { from = room($2); to = room($3) }
        from != to && (from in floor) && (to in floor) && floor[to] >= floor[from]'
}

includes() {
    git grep -E '^#include "' -- '*.c' '*.h' '*.cu' |
        sed -nE 's/^([^:]+):#include "(.*)"$/include \1 \2/p'
}

# An object file has the path of its source. Static functions of one name are nobody else's.
calls() {
    (cd "$objects" && find . -name '*.o' -print0 | xargs -0 nm -A -g) |
        sed -E 's#^\./##; s#\.o:[0-9a-f ]*# #' |
        awk '$2 == "U" { user[NR] = $1; used[NR] = $3; next } { home[$3] = $1 }
            END { for (k in user) if (used[k] in home) print used[k], user[k], home[used[k]] }' | sort
}

# Names of files: everything with a known folder, and names alone in comments. A star matches.
# Files of others: system headers, StarPU's own, and those that docs/adding-*.md make up.
foreign='ctype.h|omp.h|zlib.h|cublas.h|starpu_config.h|perfmodel_bus.c|driver_cuda.c'
foreign+='|codelets/ops/scale.cu?|codelets/losses/huber.c|codelets/optimizers/signum.c'
foreign+='|sched/waves.c|graph/trace/folded.c'
named_files() {
    local folders='(include|base|balance|bench|cmake|codelets|docs|examples|graph|mpi|sched|tests|tools|gridpipe)'
    local known
    known=$(git ls-files | sed 's#.*/##')
    {
        git grep -noE "(^|[^A-Za-z0-9_./-])$folders/[A-Za-z0-9_/*.-]+\.(c|h|cu|md|sh|svg)\b" -- \
            '*.c' '*.h' '*.cu' '*.md' '*.sh' '*.1'
        git grep -nE '^ *(/?\*|//|#) .*\b[a-z0-9_]{3,}\.(c|h|cu)\b' -- '*.c' '*.h' '*.cu' '*.sh' |
            grep -oE '^[^:]+:[0-9]+:|[^A-Za-z0-9_/*.<-][a-z0-9_]{3,}\.(c|h|cu)\b' |
            awk '/:$/ { where = $0; next } { print where $0 }'
    } | sed -E 's#^([^:]+:[0-9]+):[^A-Za-z]?#\1 #' | sort -u | grep -vE " ($foreign)\$" |
        while read -r where path; do
            [[ $path != */* ]] && grep -qx "$path" <<<"$known" || compgen -G "$path" >/dev/null ||
                compgen -G "include/$path" >/dev/null || echo "no such file: $path, named in $where"
        done
}

# "pipe/NAME" is a test of the suite pipe in test_pipe.c, "norm: batchnorm/NAME" one in test_norm.c.
named_tests() {
    local file name
    awk -F' [|] ' '/^[|]/ { print $2 }' tests/PARITY.md | grep -oE '([a-z_]+: )?[a-z_]+/[a-z0-9_]+' |
        while read -r file name; do
            [[ -n $name ]] || name=$file file=${file%/*}
            grep -qF "Test(${name%/*}, ${name#*/})" "tests/test_${file%:}.c" ||
                echo "no such test: $name, named in tests/PARITY.md"
        done
}

{ includes | upward && calls | upward && named_files && named_tests; } |
    awk '{ print } END { print NR " to be mended"; exit (NR > 0) }'

#!/bin/sh
# A program that counts on the order of its updates, and never syncs. A step, a hundred times a second:
#   1. append the line "entry N" to DIR/journal
#   2. write the number N to DIR/settings.new, and rename that over DIR/settings
#   3. write the number N to DIR/done.N
# So a file done.N says: the journal has entry N, and the settings are those of step N or a later one.
# It ends after STEPS steps, or in the step in which a call fails, and says which that was.
# usage: never-syncs.sh DIR STEPS
# crates/ccfs/tests/readme.rs and verify/tests/src/cut run it.
dir=${1:?usage: never-syncs.sh DIR STEPS} steps=${2:?usage: never-syncs.sh DIR STEPS}
n=0
while [ "$n" -lt "$steps" ]; do
    n=$((n + 1))
    echo "entry $n" >>"$dir/journal" &&
        echo "$n" >"$dir/settings.new" &&
        mv "$dir/settings.new" "$dir/settings" &&
        echo "$n" >"$dir/done.$n" || break
    sleep 0.01
done 2>/dev/null
echo "never-syncs.sh: the last step was $n"

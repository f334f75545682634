#!/bin/bash
# The guest's second program, in the root that the command sees: runs the command, tells its exit code, ends the guest.
run=$1
exec </dev/null >/dev/ttyS1 2>&1
uring=/sys/module/fuse/parameters/enable_uring
[ ! -e $uring ] || echo Y >$uring
bash "$run/command"
code=$?
stty <&1 >/dev/null # waits until the line has taken everything
echo $code >"$run/code"
echo b >/proc/sysrq-trigger

#!/bin/sh
# Consistent: config is whole or absent; where the log says done, or the program had said so, it is there.
if [ -e config ]; then
    [ "$(wc -c <config)" = 8192 ] && [ "$(tr -d n <config | wc -c)" = 0 ] || { echo "error: config is torn"; exit 1; }
    exit 0
fi
[ "$(cat log 2>/dev/null)" != done ] || { echo "error: the log says done, but there is no config"; exit 1; }
! grep -q saved "$CCFS_MARKS" || { echo "error: a saved config is lost"; exit 1; }

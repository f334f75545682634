#!/bin/sh
# LevelDB and LMDB by way of drivers of our own, which DRIVERS names the directory of. usage: driver.sh setup|work|check|damage leveldb|lmdb [synced]
case $1 in
setup | work) exec "$DRIVERS/$2" "$1" db $3 ;;
check) exec "$DRIVERS/$2" check db "${CCFS_MARKS:-/dev/null}" ;;
damage)
    case $2 in
    lmdb) dd if=/dev/zero of=db/data.mdb bs=4096 count=2 conv=notrunc 2>/dev/null ;;
    leveldb) for f in db/*.log db/*.ldb; do [ -s "$f" ] && dd if=/dev/zero of="$f" bs=1 seek=12 count=40 conv=notrunc 2>/dev/null; done ;;
    esac
    ;;
esac

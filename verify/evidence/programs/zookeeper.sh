#!/bin/sh
# ZooKeeper by way of a driver of our own, which DRIVERS names the directory of. usage: zookeeper.sh setup|work|check|damage
exec python3 "$DRIVERS/zookeeper.py" "$1"

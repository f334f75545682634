cd /tmp/bb/t; C=/tmp/bb/ccfs; r(){ echo "+ $*" | cut -c1-150; timeout 60 "$@" 2>&1 | tail -c 400; echo "  => ${PIPESTATUS[0]}"; }
rm -f q.img; $C mkfs -s 200M q.img >/dev/null; $C mount q.img m; echo base > m/base
r $C atomic --on m -- sh -c 'echo new >m/base; (sleep 3; echo late >> m/late) >/dev/null 2>&1 & exit 0'; cat m/base; sleep 4; cat m/late
r $C atomic --on m -- sh -c 'echo x1 >m/base; echo y > m/nf; mkdir m/nd; mv m/late m/nd/; kill -9 $PPID; sleep 1'; sleep .5; cat m/base; ls m
timeout -s KILL 1 $C atomic --on m -- sh -c 'echo x2 >m/base; sleep 3; echo x3 > m/base; echo "inner $?"'; cat m/base; sleep 3; cat m/base
timeout -s INT 1 $C atomic --on m -- sh -c 'trap "exit 0" INT; echo x4 >m/base; sleep 3'; echo "int rc $?"; cat m/base
r $C atomic --on m -- sh -c 'timeout 5 /tmp/bb/ccfs umount m; echo um $?; echo x5 > m/base'; cat m/base
r $C atomic --on m -- dd if=/dev/zero of=m/huge bs=1M count=150; ls -la m/huge
r $C atomic --on m -- sh -c 'dd if=/dev/zero of=m/huge bs=1M count=150 2>/dev/null; exit 0'; ls -la m/huge; rm -f m/huge
r $C atomic --on m -- sh -c 'for i in $(seq 3000); do echo $i > m/nd/n$i; done; rm -r m/nd; mkdir m/nd; sync; exit 1'; ls m/nd m | head
r $C atomic --on m -- sh -c 'exec 3>m/held; echo a >&3; exit 3'; ls m/held
exec 5>>m/base; $C atomic --on m -- sh -c 'echo group >> m/base; exit 1'; echo outside >&5; cat m/base; exec 5>&-
( for i in 1 2 3 4 5 6 7 8; do echo o$i >> m/base; sleep .2; done ) & r $C atomic --on m -- sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do echo g$i >> m/base || exit 9; sleep .2; done'; wait; cat m/base | tr '\n' ' '
$C mount -o remount,ro none m; r $C atomic --on m -- true; r $C atomic --on m -- touch m/z; r $C stream run --sync --on m -- true; r $C stream new m; $C mount -o remount,rw none m
r $C stream run --sync --on m -- sh -c 'echo s > m/s1; exit 7'; r $C stream run --ignore-fsync --on m -- dd if=/dev/zero of=m/ig bs=4k count=10 oflag=sync
python3 - <<'P'
import subprocess
ids=set(); e=0
for i in range(200): ids.add(subprocess.run(["/tmp/bb/ccfs","stream","new","m"],capture_output=True,text=True).stdout)
print("streams",len(ids))
P
for i in $(seq 70); do $C atomic --on m -- sleep 4 >/dev/null 2>at.err$i & done; sleep 2; cat at.err* | sort | uniq -c | head -3; $C status m | head -3; timeout 3 touch m/free; wait; rm -f at.err*
bash cmp.sh q.img m; rm -f q.img

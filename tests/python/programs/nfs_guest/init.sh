#!/bin/bash
# Process 1 of a User Mode Linux guest whose root is the host's file tree, read-only (hostfs). Makes it a client of its
# own NFS server, runs a program, and turns the guest off. The kernel passes these variables on from its command line:
#
#   GUEST_FOLDER    a folder of the host, written to: shows as /mnt/out
#   GUEST_PROGRAM   what is run, with the mounts at /mnt/v3, /mnt/v4 and /mnt/hard; /mnt/srv is the server's side
#   GUEST_PYTHON    the interpreter that runs it
#   GUEST_PATH      PYTHONPATH
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/mnt/tmp TMPDIR=/mnt/tmp PYTHONPATH=$GUEST_PATH

off() {
    dmesg | tail -30
    sync
    echo o >/proc/sysrq-trigger
    sleep 60
}
trap off EXIT

set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/{out,srv,v3,v4,hard,tmp}
mount -t hostfs hostfs /mnt/out -o "$GUEST_FOLDER"
exec >/mnt/out/console 2>&1
set -x
for folder in /run /var/lib/nfs; do mount -t tmpfs tmpfs $folder; done
mkdir -p /var/lib/nfs/{sm,sm.bak,v4recovery,rpc_pipefs} /run/rpcbind /run/sendsigs.omit.d /run/lock
touch /var/lib/nfs/{etab,rmtab,state}
mkdir /dev/shm
mount -t tmpfs tmpfs /dev/shm
ip link set lo up

# Modules lie where Debian puts them for User Mode Linux, and not where modprobe looks.
mkdir -p /mnt/modules/lib/modules
ln -s "/usr/lib/uml/modules/$(uname -r)" "/mnt/modules/lib/modules/$(uname -r)"
for module in nfsd nfs nfsv3 nfsv4 sch_netem; do modprobe --dirname /mnt/modules $module; done

mount -t tmpfs -o size=300m tmpfs /mnt/srv
mount -t nfsd nfsd /proc/fs/nfsd
# A server is otherwise silent for 90 s, in which clients of one before may claim their state.
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
rpcbind -w
exportfs -o rw,no_root_squash,fsid=0,no_subtree_check,async '*:/mnt/srv'
rpc.nfsd 8
rpc.mountd

# No helper (-i), so that no daemon for locks is needed. A request that is not answered for 1 s is sent again once.
options=addr=127.0.0.1,proto=tcp,timeo=10,retrans=1,actimeo=1
v3=vers=3,mountproto=tcp,mountaddr=127.0.0.1,nolock
mount -i -t nfs -o $v3,$options,soft 127.0.0.1:/mnt/srv /mnt/v3
mount -i -t nfs -o $v3,$options,hard 127.0.0.1:/mnt/srv /mnt/hard
mount -i -t nfs4 -o vers=4.2,clientaddr=127.0.0.1,$options,soft 127.0.0.1:/ /mnt/v4

cd /mnt/tmp
"$GUEST_PYTHON" "$GUEST_PROGRAM"

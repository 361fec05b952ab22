// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"strings"
	"testing"
)

const (
	uid    = "31dd0274-bb43-4975-bdbc-7e10047a23f8"
	under  = "31dd0274_bb43_4975_bdbc_7e10047a23f8"
	static = "d8992f589d8dd12c4342376ccb459375"
	id     = "851c75dad6ad8ce6a5d9b9129a4eb1645f7c6e5ba8406b12d50377b665737072"
	other  = "fd9d0ea06257a9780827cbc7fd92e3812a54fca26d63e191b73610d5d48b9cbd"
	uid2   = "7fda01c4-0ece-403d-88b4-c371d66d132a"
)

// paths are the path forms of runtimes, drivers and QoS classes, and what they
// say.
var paths = []struct{ path, uid, id string }{
	// cgroupfs, by QoS class: guaranteed pods have none.
	{"/kubepods/pod" + uid + "/" + id, uid, id},
	{"/kubepods/burstable/pod" + uid + "/" + id, uid, id},
	{"/kubepods/besteffort/pod" + uid + "/" + id, uid, id},
	{"/kubepods/besteffort/pod" + uid + "/crio-" + id, uid, id},
	{"/kubepods/burstable/pod" + static + "/" + id, static, id},
	// systemd.
	{"/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope", uid, id},
	{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope", uid, id},
	{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/docker-" + id + ".scope", uid, id},
	{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/crio-" + id + ".scope", uid, id},
	{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/crio-" + id + ".scope/container", uid, id},
	{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/crio-conmon-" + id + ".scope", uid, id},
	{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + static + ".slice/cri-containerd-" + id + ".scope", static, id},
	// The kubelet says systemd and the runtime takes it for a path.
	{"/system.slice/containerd.service/kubepods-burstable-pod" + under + ".slice:cri-containerd:" + id, uid, id},
	{"/kubepods-besteffort-pod" + under + ".slice:cri-containerd:" + id, uid, id},
	// k3s, kind, k3d: the node is a service or a container.
	{"/system.slice/k3s.service/kubepods/burstable/pod" + uid + "/" + id, uid, id},
	{"/docker/" + other + "/kubelet/kubepods/besteffort/pod" + uid + "/" + id, uid, id},
	{"/docker/" + other + "/kubepods/besteffort/pod" + uid + "/" + id, uid, id},
	{"/system.slice/docker-" + other + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/" +
		"kubelet-kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope", uid, id},
	// Seen from a cgroup namespace of one's own.
	{"/../../kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope", uid, id},
	{"/../../../../kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope", uid, id},
	{"/../../pod" + uid + "/" + id, uid, id},
	{"/../../../burstable/pod" + uid + "/" + id, uid, id},
	{"/../cri-containerd-" + id + ".scope", "", ""}, // a container of the reader's own pod: no pod is named
	// Cgroups below the container's, its own or another runtime's in it.
	{"/kubepods/pod" + uid + "/" + id + "/system.slice/a.service", uid, id},
	{"/kubepods/pod" + uid + "/" + id + "/docker/" + other, uid, id},
	{"/kubepods/pod" + uid + "/" + id + "/kubelet/kubepods/pod" + uid2 + "/" + other, uid, id},
	// A pod's, and none of its containers'.
	{"/kubepods/burstable/pod" + uid, uid, ""},
	{"/kubepods/burstable/pod" + uid + "/" + id[:40], uid, ""},
	// Nobody's.
	{"/", "", ""},
	{"", "", ""},
	{"/init.scope", "", ""},
	{"/system.slice/kubelet.service", "", ""},
	{"/user.slice/user-1000.slice/session-2.scope", "", ""},
	{"/docker/" + id, "", ""},
	{"/system.slice/docker-" + id + ".scope", "", ""},
	{"/machine.slice/libpod-" + id + ".scope", "", ""},
	{"/machine.slice/machine-libpod_pod_" + id + ".slice/libpod-" + other + ".scope", "", ""},
	{"/kubepods/burstable", "", ""},
	{"/kubepods/burstable/podcast/" + id, "", ""},
	{"/kubepods/tripod" + uid + "/" + id, "", ""},
}

func TestCgroupPaths(t *testing.T) {
	for _, p := range paths {
		for _, text := range []string{
			"0::" + p.path + "\n",
			"0::" + p.path, // cut short
			"12:cpu,cpuacct:" + p.path + "\n11:memory:" + p.path + "\n1:name=systemd:" + p.path + "\n0::/\n",
			"13:rdma:/\n12:cpuset:" + p.path + "\n",
		} {
			if u, i := parseCgroup(text); u != p.uid || i != p.id {
				t.Errorf("%q: pod %q, container %q; want %q, %q", text, u, i, p.uid, p.id)
			}
		}
	}
}

// The hierarchy that names a container is believed before one that does not.
func TestHierarchiesThatDiffer(t *testing.T) {
	text := "2:pids:/kubepods/pod" + uid2 + "\n1:name=systemd:/kubepods/pod" + uid + "/" + id + "\n"
	if u, i := parseCgroup(text); u != uid || i != id {
		t.Errorf("pod %q, container %q", u, i)
	}
}

func TestMounts(t *testing.T) {
	f := func(wantUID, wantName string, lines ...string) {
		t.Helper()
		if u, n := parseMountinfo(strings.Join(lines, "\n")); u != wantUID || n != wantName {
			t.Errorf("pod %q, container %q; want %q, %q:\n%s", u, n, wantUID, wantName, strings.Join(lines, "\n"))
		}
	}
	const root = "1104 1019 0:318 / / rw,relatime master:401 - overlay overlay rw,lowerdir=/a"
	const hosts = "1131 1104 259:1 /var/lib/kubelet/pods/" + uid + "/etc-hosts /etc/hosts rw,noatime - xfs /dev/nvme0n1p1 rw"
	const log = "/containers/server/6d7c8bf1 /dev/termination-log rw,noatime - xfs /dev/nvme0n1p1 rw"
	f("", "")
	f("", "", root, hosts)
	f(uid, "server", root, hosts, "1132 1104 259:1 /var/lib/kubelet/pods/"+uid+log)
	f(uid, "server", "1132 1104 259:1 /pods/"+uid+log) // the kubelet's directory is a file system
	f(uid, "server", "1132 1104 0:50 /@data/rancher/kubelet/pods/"+uid+log)
	f(static, "server", "1132 1104 259:1 /var/lib/kubelet/pods/"+static+log)
	// What a host mounts for its pods names no container.
	f("", "", "900 27 0:60 / /var/lib/kubelet/pods/"+uid+"/containers/server/x rw - tmpfs tmpfs rw")
	f("", "", "901 27 259:1 /var/lib/kubelet/pods/"+uid+"/volumes/kubernetes.io~empty-dir/v /data rw - xfs /dev/x rw")
	f("", "", "902 27 259:1 /srv/pods/no-uid/containers/server/x /x rw - xfs /dev/x rw")
	f("", "", "903 27 259:1 /pods/"+uid+"/containers/No_Name/x /x rw - xfs /dev/x rw")
	f("", "", "garbage", "1 2 3")
}

// FuzzCgroup: what is found is well formed, stands in the text and is found
// again, and nothing overrules a line that names a container before.
func FuzzCgroup(f *testing.F) {
	for _, p := range paths {
		f.Add("0::" + p.path)
		f.Add("1:name=systemd:" + p.path + "\n0::/")
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, i := parseCgroup(text)
		if u != "" && (!isUID(u) || !strings.Contains(strings.ReplaceAll(text, "_", "-"), "pod"+u)) {
			t.Errorf("%q: pod %q", text, u)
		}
		if i != "" && (u == "" || len(i) != idLength || !isHex(i) || !strings.Contains(text, i)) {
			t.Errorf("%q: container %q of pod %q", text, i, u)
		}
		again := "0::/kubepods/pod" + u + "/" + i
		if u2, i2 := parseCgroup(again); u != "" && (u2 != u || i2 != i) {
			t.Errorf("%q: %q, %q", again, u2, i2)
		}
		first := "5:memory:/kubepods/pod" + uid + "/" + id + "\n" + text
		if u, i := parseCgroup(first); u != uid || i != id {
			t.Errorf("%q: %q, %q", first, u, i)
		}
	})
}

// FuzzMounts: what is found is well formed and stands in the text.
func FuzzMounts(f *testing.F) {
	f.Add("1 2 259:1 /var/lib/kubelet/pods/" + uid + "/containers/server/6d7c8bf1 /dev/termination-log rw - xfs /dev/x rw")
	f.Add("1 2 0:1 / / rw")
	f.Fuzz(func(t *testing.T, text string) {
		u, n := parseMountinfo(text)
		if (u == "") != (n == "") || u != "" && (!isUID(u) || !isName(n) || !strings.Contains(text, "/pods/"+u+"/containers/"+n+"/")) {
			t.Errorf("%q: %q, %q", text, u, n)
		}
	})
}

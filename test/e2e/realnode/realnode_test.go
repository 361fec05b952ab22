// SPDX-License-Identifier: Apache-2.0

//go:build linux && !e2e

package realnode

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestParseHierarchies(t *testing.T) {
	f := func(name, mountinfo string, want []hierarchy) {
		t.Helper()
		if diff := cmp.Diff(want, parseHierarchies(mountinfo), cmp.AllowUnexported(hierarchy{})); diff != "" {
			t.Errorf("%s (-want +have):\n%s", name, diff)
		}
	}
	f("version 1, one mount of the cpuset twice", `
25 30 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
28 25 0:24 / /other/cpuset rw - cgroup cgroup rw,cpuset
29 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
`, []hierarchy{
		{dir: "/sys/fs/cgroup/cpu,cpuacct"},
		{dir: "/sys/fs/cgroup/cpuset", cpuset: true},
		{dir: "/sys/fs/cgroup/unified", unified: true},
	})
	f("version 2", "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n", []hierarchy{{dir: "/sys/fs/cgroup", unified: true}})
	f("none", "30 24 0:26 / / rw - ext4 /dev/vda rw\ngarbage\n - cgroup\n", nil)
}

// TestCgroupFolders runs on plain folders, which differ from cgroups in one thing: their files do not go with them.
func TestCgroupFolders(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name, want string) {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(content) != want {
			t.Errorf("%s holds %q (%v), want %q", name, content, err, want)
		}
	}
	write("cpuset/cpuset.cpus", "0-1\n")
	write("cpuset/cpuset.mems", "0\n")
	write("unified/cgroup.controllers", "cpu io memory pids\n")
	write("unified/cgroup.subtree_control", "cpu memory\n")

	version1 := []hierarchy{{dir: dir + "/cpuset", cpuset: true}, {dir: dir + "/unified", unified: true}}
	if _, err := newCgroup(version1, "first"); err != nil {
		t.Fatal(err)
	}
	read("cpuset/first/cpuset.cpus", "0-1\n")
	read("cpuset/first/cpuset.mems", "0\n")
	read("unified/cgroup.subtree_control", "cpu memory\n") // version 2 beside version 1 is left alone

	c, err := newCgroup(version1[1:], "second")
	if err != nil {
		t.Fatal(err)
	}
	read("unified/cgroup.subtree_control", "+pids") // the only one that was missing
	if err := os.MkdirAll(dir+"/unified/second/kubepods/pod1", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(0); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/unified/second"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
	if _, err := newCgroup(nil, "third"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without cgroups: %v", err)
	}
}

func TestWriteImage(t *testing.T) {
	var archive, again bytes.Buffer
	if err := errors.Join(WriteImage(&archive, []byte("program"), "a/b:1", "a/c:1"), WriteImage(&again, []byte("program"), "a/b:1", "a/c:1")); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Error("the same image is not the same archive")
	}
	files := map[string][]byte{}
	for r := tar.NewReader(&archive); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var index, image manifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	follow := func(d descriptor) []byte {
		t.Helper()
		content, ok := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if !ok || len(content) != d.Size || digest(content) != d.Digest {
			t.Errorf("%+v points to %d bytes (found: %v)", d, len(content), ok)
		}
		return content
	}
	var names []string
	for _, m := range index.Manifests {
		names = append(names, m.Annotations["io.containerd.image.name"])
		if err := json.Unmarshal(follow(m), &image); err != nil {
			t.Fatal(err)
		}
		follow(*image.Config)
		layer, err := tar.NewReader(bytes.NewReader(follow(image.Layers[0]))).Next()
		if err != nil || layer.Name != "payload" || layer.Mode != 0o755 {
			t.Errorf("layer: %+v, %v", layer, err)
		}
	}
	if diff := cmp.Diff([]string{"a/b:1", "a/c:1"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestPodOfCgroup(t *testing.T) {
	f := func(file, want string) {
		t.Helper()
		if have := podOfCgroup(file); have != want {
			t.Errorf("podOfCgroup(%q) = %q, want %q", file, have, want)
		}
	}
	f("4:memory:/x/kubepods/besteffort/pod9ad10276-7520/0f3a\n0::/\n", "9ad10276-7520")
	f("0::/x/kubepods/burstable/poda-b/0f3a\n", "a-b")
	f("0::/user.slice\n", "")
	f("", "")
}

func TestLabelledOwners(t *testing.T) {
	f := func(text string, want Owners, fails string) {
		t.Helper()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		have, err := labelledOwners(families)
		if fails != "" {
			if err == nil || !strings.Contains(err.Error(), fails) {
				t.Errorf("error %v, want %q", err, fails)
			}
			return
		}
		if diff := cmp.Diff(want, have); err != nil || diff != "" {
			t.Errorf("%v (-want +have):\n%s", err, diff)
		}
	}
	f("DCGM_FI_A{UUID=\"GPU-1\"} 1\nDCGM_FI_A{UUID=\"GPU-2\",pod=\"p\",namespace=\"n\",container=\"c\"} 1\nother{UUID=\"GPU-3\"} 1\n",
		Owners{"GPU-1": {}, "GPU-2": {"n", "p", "c"}}, "")
	f("DCGM_FI_A{UUID=\"GPU-1\"} 1\nDCGM_FI_B{UUID=\"GPU-1\",pod=\"p\"} 1\n", nil, "GPU-1 belongs to")
	f("", Owners{}, "")
}

func TestWatchNotes(t *testing.T) {
	w := NewWatch("")
	now := time.Unix(0, 0).UTC()
	a, b := Owner{Pod: "a"}, Owner{Pod: "b"}
	w.note(Owners{"1": a, "2": {}}, nil, now)
	w.note(Owners{"1": a, "2": b}, nil, now.Add(1))
	w.note(Owners{"2": b}, nil, now.Add(2))
	w.note(nil, errors.New("refused"), now.Add(3))
	if diff := cmp.Diff(map[string][]Change{"1": {{now, a}}, "2": {{now, Owner{}}, {now.Add(1), b}}}, w.Changes()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"00:00:00: no series of GPU 1", "00:00:00: refused"}, w.Errors()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Owners{"1": a, "2": b}, w.Owners()); diff != "" {
		t.Error(diff)
	}
}

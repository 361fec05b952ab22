// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroupPrefix is the prefix of our cgroups' names. The suffix is the process that made the cgroup, see [RemoveStaleCgroups].
const cgroupPrefix = "gpupilot-realnode-"

// Cgroup is a cgroup below the root of every hierarchy of the machine, under which the kubelet makes those of the pods.
type Cgroup struct {
	name        string
	hierarchies []hierarchy
}

// hierarchy is a mounted cgroup hierarchy.
type hierarchy struct {
	dir     string // mount point
	unified bool   // version 2
	cpuset  bool   // version 1 with the cpuset controller
}

// NewCgroup makes the cgroup in the hierarchies of /proc/self/mountinfo. The error wraps [ErrUnavailable] if the
// machine has no cgroups or does not allow new ones.
func NewCgroup() (*Cgroup, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return newCgroup(parseHierarchies(string(mounts)), cgroupPrefix+strconv.Itoa(os.Getpid()))
}

// newCgroup makes the cgroup with the name in the hierarchies.
func newCgroup(hierarchies []hierarchy, name string) (*Cgroup, error) {
	c := &Cgroup{name: name, hierarchies: hierarchies}
	if len(hierarchies) == 0 {
		return nil, fmt.Errorf("%w: no cgroups are mounted", ErrUnavailable)
	}
	for _, h := range hierarchies {
		if err := h.makeGroup(name, c.unifiedOnly()); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, err), c.Remove(0))
		}
	}
	return c, nil
}

// Path returns the cgroup's name for the kubelet, which is the same in each hierarchy.
func (c *Cgroup) Path() string { return "/" + c.name }

// unifiedOnly reports whether all controllers are in version 2. Beside version 1, the hierarchy of version 2 is not used.
func (c *Cgroup) unifiedOnly() bool {
	return !slices.ContainsFunc(c.hierarchies, func(h hierarchy) bool { return !h.unified })
}

// Remove removes the cgroup with all below it, and waits at most patience for the last processes to leave it.
func (c *Cgroup) Remove(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		var failed error
		for _, h := range c.hierarchies {
			failed = errors.Join(failed, removeTree(filepath.Join(h.dir, c.name)))
		}
		if failed == nil || time.Now().After(deadline) {
			return failed
		}
		<-time.After(50 * time.Millisecond)
	}
}

// RemoveStaleCgroups removes the cgroups of killed runs.
func RemoveStaleCgroups() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var failed error
	for _, h := range parseHierarchies(string(mounts)) {
		found, err := filepath.Glob(filepath.Join(h.dir, cgroupPrefix+"*"))
		failed = errors.Join(failed, err)
		for _, dir := range found {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix))
			if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				failed = errors.Join(failed, removeTree(dir))
			}
		}
	}
	return failed
}

// parseHierarchies lists the cgroup mounts of a mountinfo file (proc(5): the fields after " - " are the file system's
// type, its source and its options). A hierarchy that is mounted twice comes once.
func parseHierarchies(mountinfo string) []hierarchy {
	var list []hierarchy
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		mount, fsys, ok := strings.Cut(line, " - ")
		place, kind := strings.Fields(mount), strings.Fields(fsys)
		if !ok || len(place) < 5 || len(kind) < 3 || (kind[0] != "cgroup" && kind[0] != "cgroup2") || seen[place[2]] {
			continue
		}
		seen[place[2]] = true // major:minor, one per hierarchy
		list = append(list, hierarchy{
			dir:     place[4],
			unified: kind[0] == "cgroup2",
			cpuset:  kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), "cpuset"),
		})
	}
	return list
}

// makeGroup makes the folder of the cgroup in this hierarchy and gives it what the kubelet expects to find: in version 1
// the cpuset that a new folder lacks, in version 2, where that has the controllers, all controllers.
func (h hierarchy) makeGroup(name string, controllers bool) error {
	if h.unified && !controllers {
		return nil
	}
	if h.unified {
		if err := h.enableControllers(); err != nil {
			return err
		}
	}
	dir := filepath.Join(h.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if !h.cpuset {
		return nil
	}
	for _, key := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(h.dir, key))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, key), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers gives the children of the root all controllers that the kubelet uses. It leaves them enabled: a
// service manager has done the same on most machines, and a controller enabled for nobody costs nothing.
func (h hierarchy) enableControllers() error {
	has, err := h.words("cgroup.controllers")
	if err != nil {
		return err
	}
	given, err := h.words("cgroup.subtree_control")
	if err != nil {
		return err
	}
	for _, controller := range []string{"cpuset", "cpu", "memory", "hugetlb", "pids"} {
		if !slices.Contains(has, controller) || slices.Contains(given, controller) {
			continue
		}
		file := filepath.Join(h.dir, "cgroup.subtree_control")
		if err := os.WriteFile(file, []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("enable the cgroup controller %s: %w", controller, err)
		}
	}
	return nil
}

// words returns the words in a file of the hierarchy's root.
func (h hierarchy) words(file string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(h.dir, file))
	return strings.Fields(string(content)), err
}

// removeTree removes a folder and the folders below it, deepest first; the files of a cgroup go with its folder.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		if e := syscall.Rmdir(dir); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("remove %s: %w", dir, e))
		}
	}
	return err
}

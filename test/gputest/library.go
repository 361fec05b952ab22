// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// libraries are the folders of test/fakes by the libraries that they make.
var libraries = map[string]string{
	"libnvidia-ml-fake.so": "nvml", "libnvidia-ml-fake-old.so": "nvml", "libdcgm-fake.so": "dcgm", "libcuda-fake.so": "cuda",
}

// Library returns the path of a fake GPU library in bin. make builds it where it is missing or older than its sources; a
// test without it is skipped.
func Library(t testing.TB, name string) string {
	t.Helper()
	build, _ := builds.LoadOrStore(libraries[name], sync.OnceValues(func() (string, error) { return build(libraries[name]) }))
	bin, err := build.(func() (string, error))()
	if err != nil {
		t.Skipf("no %s: %v", name, err)
	}
	return filepath.Join(bin, name)
}

var builds sync.Map // by folder

func build(folder string) (bin string, err error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	for _, err = os.Stat(filepath.Join(root, "go.mod")); err != nil; _, err = os.Stat(filepath.Join(root, "go.mod")) {
		if root == filepath.Dir(root) {
			return "", err
		}
		root = filepath.Dir(root)
	}
	sources := filepath.Join(root, "test", "fakes", folder)
	lock, err := os.Open(filepath.Join(sources, "Makefile")) // the tests of another package may build it too
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if out, err := exec.Command("make", "--no-print-directory", "-C", sources).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make: %w: %s", err, out)
	}
	return filepath.Join(root, "bin"), nil
}

// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// ErrUnavailable means that this machine cannot run a real node. The error that wraps it has the reason; tests skip on it.
var ErrUnavailable = errors.New("a real node cannot run here")

// debianPackages hold the container runtime: containerd, its shim and ctr, and runc.
var debianPackages = [...]string{"containerd", "runc"}

// Runtime is a container runtime unpacked from Debian's packages, which are not installed.
type Runtime struct {
	Dir     string // root of the unpacked packages
	Version string // one word per package, such as "containerd=1.6.20~ds1-1+deb12u3"
}

// FetchRuntime finds the container runtime under cache, or downloads and unpacks it there, with apt's own checks of what
// it downloads. The folder is named by the hash of the packages and comes to be by a rename, so that it is whole if it
// is there. The error wraps ErrUnavailable where the machine has no apt or its package sources cannot be reached.
func FetchRuntime(ctx context.Context, cache string) (Runtime, error) {
	prefix := filepath.Join(cache, "containerd-"+runtime.GOARCH+"-")
	found, err := filepath.Glob(prefix + "*")
	if err != nil {
		return Runtime{}, fmt.Errorf("look for the container runtime: %w", err)
	}
	slices.Sort(found)
	for _, dir := range found {
		if r, err := openRuntime(dir); err == nil {
			return r, nil
		}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Runtime{}, err
	}
	partial, err := os.MkdirTemp(cache, ".containerd-")
	if err != nil {
		return Runtime{}, err
	}
	defer func() { _ = os.RemoveAll(partial) }() // what is left of it harms nobody
	hash, err := unpackRuntime(ctx, partial)
	if err != nil {
		return Runtime{}, err
	}
	dir := prefix + hash
	if err := os.Rename(filepath.Join(partial, "root"), dir); err != nil && !errors.Is(err, os.ErrExist) {
		return Runtime{}, fmt.Errorf("keep the container runtime: %w", err)
	}
	return openRuntime(dir)
}

// openRuntime returns the runtime at dir, or an error if programs are missing.
func openRuntime(dir string) (Runtime, error) {
	r := Runtime{Dir: dir}
	for _, program := range []string{r.Containerd(), r.Ctr(), r.Runc()} {
		if _, err := os.Stat(program); err != nil {
			return r, err
		}
	}
	version, err := os.ReadFile(filepath.Join(dir, "versions"))
	if err != nil {
		return r, err
	}
	r.Version = strings.TrimSpace(string(version))
	return r, nil
}

// unpackRuntime downloads the packages to dir/debs, unpacks them to dir/root, checks that the programs run here and
// returns the hash of the packages.
func unpackRuntime(ctx context.Context, dir string) (string, error) {
	debs, root := filepath.Join(dir, "debs"), filepath.Join(dir, "root")
	for _, d := range []string{debs, root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	if err := downloadPackages(ctx, debs); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	versions := make([]string, 0, len(files))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		sum.Write(content)
		if _, err := output(ctx, "", "dpkg", "-x", file, root); err != nil {
			return "", err
		}
		version, err := output(ctx, "", "dpkg-deb", "--show", "--showformat=${Package}=${Version}", file)
		if err != nil {
			return "", err
		}
		versions = append(versions, version)
	}
	r := Runtime{Dir: root}
	for _, program := range []string{r.Containerd(), r.Runc()} {
		if _, err := output(ctx, "", program, "--version"); err != nil {
			return "", fmt.Errorf("%w: the unpacked program does not run: %w", ErrUnavailable, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "versions"), []byte(strings.Join(versions, " ")+"\n"), 0o644); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

// downloadPackages puts the Debian packages into dir. It refreshes apt's lists when they are missing or out of date.
func downloadPackages(ctx context.Context, dir string) error {
	names := strings.Join(debianPackages[:], " and ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%w: it needs Debian's packages %s, and there is no apt-get to download them", ErrUnavailable, names)
	}
	download := append([]string{"-q", "download"}, debianPackages[:]...)
	if _, err := output(ctx, dir, "apt-get", download...); err == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it needs Debian's packages %s; as root, apt-get update makes them known", ErrUnavailable, names)
	}
	if _, err := output(ctx, dir, "apt-get", "-q", "update"); err != nil {
		return fmt.Errorf("%w: it needs Debian's packages %s: %w", ErrUnavailable, names, err)
	}
	if _, err := output(ctx, dir, "apt-get", download...); err != nil {
		return fmt.Errorf("%w: it needs Debian's packages %s: %w", ErrUnavailable, names, err)
	}
	return nil
}

// Containerd returns the path of containerd.
func (r Runtime) Containerd() string { return filepath.Join(r.Dir, "usr/bin/containerd") }

// Ctr returns the path of ctr, containerd's command line.
func (r Runtime) Ctr() string { return filepath.Join(r.Dir, "usr/bin/ctr") }

// Runc returns the path of runc.
func (r Runtime) Runc() string { return filepath.Join(r.Dir, "usr/sbin/runc") }

// Path returns a PATH with the runtime's folders first: containerd finds its shim and runc there.
func (r Runtime) Path() string {
	return strings.Join([]string{filepath.Join(r.Dir, "usr/bin"), filepath.Join(r.Dir, "usr/sbin"), os.Getenv("PATH")}, ":")
}

// output runs a program in dir and returns what it printed on standard output; the error carries the last line that it
// printed on standard error.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(program), err, lastLine(stderr.String()))
	}
	return stdout.String(), nil
}

// lastLine returns the last line of text that is not blank.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

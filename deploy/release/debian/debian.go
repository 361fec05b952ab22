// SPDX-License-Identifier: Apache-2.0

// Package debian downloads packages of the distribution that this machine runs (Debian, or one that is made like it),
// for this or another architecture, and reads files out of them. Nothing is installed, and root is not needed.
package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/deploy/release/rootfs"
)

// ErrUnavailable means that packages cannot be had on this machine. The error that wraps it has the reason.
var ErrUnavailable = errors.New("packages of the distribution are not available")

// listsMaxAge bounds how old the lists of a foreign architecture may get; security updates are in them.
const listsMaxAge = 24 * time.Hour

// Package is a downloaded package.
type Package struct {
	Name, Version, Architecture string
	Source                      string // source package and its version: "glibc 2.36-9+deb12u14"
	File                        string // path of the .deb
	SHA256                      string // of the .deb, hexadecimal
	Control                     []byte // the package's control file
}

// Store downloads packages to a folder and keeps them there.
type Store struct {
	Dir string // absolute
}

// Get returns the newest version of each named package for the architecture (Debian's name: "amd64", "arm64"), in the
// order of names. A package whose hash is in the store is not downloaded again. The error wraps ErrUnavailable if the
// machine has no apt, or the package sources cannot be reached.
func (s Store) Get(ctx context.Context, architecture string, names ...string) ([]Package, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	apt, uris, err := s.locate(ctx, architecture, names)
	if err != nil {
		return nil, err
	}
	pool := filepath.Join(s.Dir, "pool")
	if err := os.MkdirAll(pool, 0o755); err != nil {
		return nil, err
	}
	packages := make([]Package, len(names))
	for _, u := range uris {
		file := filepath.Join(pool, u.file)
		if sum, err := fileSum(file); err != nil || sum != u.sum {
			if err := apt.download(ctx, pool, u); err != nil {
				return nil, err
			}
		}
		p, err := open(ctx, file, u.sum)
		if err != nil {
			return nil, err
		}
		if i := slices.Index(names, p.Name); i >= 0 {
			packages[i] = p
		}
	}
	for i, p := range packages {
		if p.Name == "" {
			return nil, fmt.Errorf("%w: apt-get knows no package %s for %s", ErrUnavailable, names[i], architecture)
		}
	}
	return packages, nil
}

// apt is apt-get with options that select an architecture and the lists of its packages.
type apt []string

// uri is a line of apt-get's --print-uris.
type uri struct{ name, file, sum string }

// locate finds the packages in the machine's own lists, or in private ones.
func (s Store) locate(ctx context.Context, architecture string, names []string) (apt, []uri, error) {
	if native, err := run(ctx, "", "dpkg", "--print-architecture"); err == nil && strings.TrimSpace(native) == architecture {
		a := apt{"-q"}
		if uris, err := a.uris(ctx, names); err == nil {
			return a, uris, nil
		}
	}
	root := filepath.Join(s.Dir, "apt-"+architecture)
	lists := filepath.Join(root, "lists")
	for _, dir := range []string{filepath.Join(lists, "partial"), filepath.Join(root, "archives", "partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, nil, err
		}
	}
	a := apt{
		"-q", "-o", "APT::Architecture=" + architecture, "-o", "APT::Architectures=" + architecture, "-o", "Dir::State=" + root,
		"-o", "Dir::State::lists=" + lists, "-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache=" + root,
		"-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3",
	}
	stamp := filepath.Join(root, "updated")
	info, err := os.Stat(stamp)
	if err != nil || time.Since(info.ModTime()) > listsMaxAge {
		if _, updateErr := run(ctx, "", "apt-get", append(slices.Clone(a), "update")...); updateErr == nil {
			if err := os.WriteFile(stamp, nil, 0o644); err != nil {
				return nil, nil, err
			}
		} else if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrUnavailable, updateErr)
		}
	}
	uris, err := a.uris(ctx, names)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return a, uris, nil
}

// uriLine is "'URL' FILE SIZE SHA256:SUM".
var uriLine = regexp.MustCompile(`(?m)^'[^']+' (([^_ ]+)_[^ /]+\.deb) \d+ SHA256:([0-9a-f]{64})$`)

func (a apt) uris(ctx context.Context, names []string) ([]uri, error) {
	out, err := run(ctx, "", "apt-get", append(append(slices.Clone(a), "--print-uris", "download"), names...)...)
	if err != nil {
		return nil, err
	}
	var uris []uri
	for _, m := range uriLine.FindAllStringSubmatch(out, -1) {
		uris = append(uris, uri{name: m[2], file: m[1], sum: m[3]})
	}
	if len(uris) != len(names) {
		return nil, fmt.Errorf("apt-get names %d files for the packages %s", len(uris), strings.Join(names, ", "))
	}
	return uris, nil
}

// download puts a package into the pool. apt checks the signature of its lists and the file's hash.
func (a apt) download(ctx context.Context, pool string, u uri) error {
	partial, err := os.MkdirTemp(pool, ".partial-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	if _, err := run(ctx, partial, "apt-get", append(slices.Clone(a), "download", u.name)...); err != nil {
		return fmt.Errorf("%w: download %s: %w", ErrUnavailable, u.name, err)
	}
	if sum, err := fileSum(filepath.Join(partial, u.file)); err != nil || sum != u.sum {
		return fmt.Errorf("downloaded %s has SHA-256 %q, want %s: %w", u.file, sum, u.sum, err)
	}
	return os.Rename(filepath.Join(partial, u.file), filepath.Join(pool, u.file))
}

func fileSum(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

func open(ctx context.Context, file, sum string) (Package, error) {
	out, err := run(ctx, "", "dpkg-deb", "--show",
		"--showformat=${Package}\n${Version}\n${Architecture}\n${source:Package} ${source:Version}", file)
	if err != nil {
		return Package{}, err
	}
	f := strings.Split(out, "\n")
	if len(f) != 4 {
		return Package{}, fmt.Errorf("dpkg-deb --show %s printed %q", file, out)
	}
	control, err := run(ctx, "", "dpkg-deb", "--field", file)
	return Package{Name: f[0], Version: f[1], Architecture: f[2], Source: f[3], File: file, SHA256: sum, Control: []byte(control)}, err
}

// Files returns the files and links of the package for which want reports true. Paths are those of a system whose /lib
// and /lib64 are links into /usr.
func (p Package) Files(ctx context.Context, want func(name string) bool) (rootfs.Tree, error) {
	out, err := run(ctx, "", "dpkg-deb", "--fsys-tarfile", p.File)
	if err != nil {
		return nil, err
	}
	tree, r := rootfs.Tree{}, tar.NewReader(strings.NewReader(out))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return tree, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", filepath.Base(p.File), err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		if strings.HasPrefix(name, "lib/") || strings.HasPrefix(name, "lib64/") {
			name = "usr/" + name
		}
		if !want(name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			tree.Link(name, h.Linkname)
		case tar.TypeReg:
			data, err := io.ReadAll(r)
			if err != nil {
				return nil, fmt.Errorf("read %s from %s: %w", name, filepath.Base(p.File), err)
			}
			tree.Add(name, h.FileInfo().Mode().Perm(), data)
		}
	}
}

// run returns what a program prints. The error has the last line of its standard error.
func run(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%s: %w: %s", program, err, lines[len(lines)-1])
	}
	return stdout.String(), nil
}

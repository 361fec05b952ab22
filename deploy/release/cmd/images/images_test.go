// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/gpupilot/gpupilot/deploy/release/debian"
	"github.com/gpupilot/gpupilot/deploy/release/rootfs"
)

var update = flag.Bool("update", false, "write the lists of files in testdata")

const bin = "../../../../bin"

// errNoPrograms skips tests.
var errNoPrograms = errors.New("no built program")

// fixture is the images of the programs that make all and make arm64 built, built once for all tests.
type fixture struct {
	dir    string
	images map[string]map[string]opened // by program and architecture
	err    error                        // why there are none
}

var (
	once  sync.Once
	built fixture
)

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// images returns the fixture, or skips the test where programs or Debian's packages are missing.
func images(t *testing.T) fixture {
	t.Helper()
	once.Do(func() { built = buildAll(t) })
	if errors.Is(built.err, debian.ErrUnavailable) && os.Getenv("GPUPILOT_REQUIRE_IMAGES") == "" || errors.Is(built.err, errNoPrograms) {
		t.Skip(built.err)
	}
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built
}

func buildAll(t *testing.T) fixture {
	dir, err := os.MkdirTemp("", "images-")
	f := fixture{dir: dir, images: map[string]map[string]opened{}, err: err}
	if err != nil {
		return f
	}
	for _, p := range programs {
		var archive string
		if archive, f.err = f.build(t, p.name, "first"); f.err != nil {
			return f
		}
		f.images[p.name] = open(t, archive)
	}
	return f
}

// link puts a program into the folders that the images are built from, and returns its architectures. Of the static
// programs this machine's is enough.
func (f fixture) link(program string) []string {
	var architectures []string
	for _, from := range []struct{ arch, dir string }{{runtime.GOARCH, bin}, {"arm64", bin + "/arm64"}} {
		source, err := filepath.Abs(filepath.Join(from.dir, program))
		if err != nil || from.arch != runtime.GOARCH && program != "gpupilot-agent" || slices.Contains(architectures, from.arch) {
			continue
		}
		if _, err := os.Stat(source); err != nil {
			continue
		}
		_ = os.MkdirAll(f.folder(from.arch), 0o755)
		_ = os.Symlink(source, filepath.Join(f.folder(from.arch), program)) // a second link fails, as it should
		architectures = append(architectures, from.arch)
	}
	return architectures
}

func (f fixture) folder(arch string) string { return filepath.Join(f.dir, "linux-"+arch) }

// build writes the archive of one program below a folder and returns its path.
func (f fixture) build(t *testing.T, program, folder string) (string, error) {
	architectures := f.link(program)
	if !slices.Contains(architectures, runtime.GOARCH) {
		return "", fmt.Errorf("%w: bin/%s: make all", errNoPrograms, program)
	}
	if err := os.Setenv("SOURCE_DATE_EPOCH", "1700000000"); err != nil {
		return "", err
	}
	out := filepath.Join(f.dir, folder)
	var printed bytes.Buffer
	err := run(t.Context(), []string{
		"-source", "../../../..", "-programs", f.folder("ARCH"), "-out", out, "-only", program, "-version", "v1.2.3", "-revision", "abc",
		"-arch", strings.Join(architectures, " "),
	}, &printed)
	t.Logf("\n%s", &printed)
	return filepath.Join(out, program+".tar"), err
}

// opened is an image as it is read back from its archive.
type opened struct {
	v1.Image
	name   string // that containerd gives it
	config v1.Config
	files  map[string]*tar.Header
	tree   rootfs.Tree
}

// open checks an archive and returns its images by architecture.
func open(t *testing.T, archive string) map[string]opened {
	t.Helper()
	dir := t.TempDir()
	extract(t, archive, dir)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatalf("the archive is not valid: %v", err)
	}
	top, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 {
		t.Fatalf("the archive has %d entries, want one", len(top.Manifests))
	}
	platforms, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := platforms.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]opened{}
	for _, m := range manifest.Manifests {
		image, err := platforms.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		o := opened{Image: image, name: top.Manifests[0].Annotations["io.containerd.image.name"]}
		o.read(t)
		images[m.Platform.Architecture] = o
	}
	return images
}

// read reads the config and the files of all layers.
func (o *opened) read(t *testing.T) {
	t.Helper()
	config, err := o.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	o.config, o.files, o.tree = config.Config, map[string]*tar.Header{}, rootfs.Tree{}
	layers, err := o.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		content, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(content); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			o.files[h.Name] = h
			o.tree[strings.TrimSuffix(h.Name, "/")] = rootfs.Entry{Mode: h.FileInfo().Mode(), Target: h.Linkname, Data: data}
		}
	}
}

// list is every file of the image with its mode. The C library's folder and GCC's version are not the same everywhere.
func (o *opened) list(t *testing.T) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(o.files)) {
		h := o.files[name]
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s has owner %d:%d and time %s", name, h.Uid, h.Gid, h.ModTime)
		}
		line := fmt.Sprintf("%04o %s", h.Mode, name)
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		b.WriteString(line + "\n")
	}
	return regexp.MustCompile(`gcc-\d+-base`).ReplaceAllString(b.String(), "gcc-N-base")
}

// unpack writes the image's files to a folder.
func (o *opened) unpack(t *testing.T) string {
	t.Helper()
	var content bytes.Buffer
	if err := o.tree.WriteTar(&content, o.files["etc/passwd"].ModTime); err != nil {
		t.Fatal(err)
	}
	file, root := filepath.Join(t.TempDir(), "root.tar"), t.TempDir()
	if err := os.WriteFile(file, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	extract(t, file, root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

func extract(t *testing.T, archive, dir string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
}

func TestContent(t *testing.T) {
	f := images(t)
	for _, p := range programs {
		for arch, o := range f.images[p.name] {
			t.Run(p.name+"/"+arch, func(t *testing.T) {
				golden(t, filepath.Join("testdata", p.name+"-"+arch+".files"), o.list(t))
				if want := "ghcr.io/gpupilot/" + p.name + ":v1.2.3"; o.name != want {
					t.Errorf("containerd names the image %s, want %s", o.name, want)
				}
				checkConfig(t, p, o)
				checkSBOM(t, o.tree["usr/share/doc/"+p.name+"/sbom.spdx.json"].Data, filepath.Join(f.folder(arch), p.name))
			})
		}
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the image's files are not those of %s (-update writes it); got\n%s", file, got)
	}
}

func checkConfig(t *testing.T, p program, o opened) {
	t.Helper()
	user := map[string]string{"gpupilot-agent": "0:0"}[p.name]
	if user == "" {
		user = "65532:65532"
	}
	if o.config.User != user || !slices.Equal(o.config.Entrypoint, []string{"/usr/bin/" + p.name}) {
		t.Errorf("user %s, entry point %s", o.config.User, o.config.Entrypoint)
	}
	manifest, err := o.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"title": p.name, "version": "v1.2.3", "revision": "abc", "created": "2023-11-14T22:13:20Z"} {
		key = "org.opencontainers.image." + key
		if o.config.Labels[key] != want || manifest.Annotations[key] != want {
			t.Errorf("%s: label %q, annotation %q, want %q", key, o.config.Labels[key], manifest.Annotations[key], want)
		}
	}
	if p.name == "gpupilot-agent" {
		for _, want := range []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"} {
			if !slices.Contains(o.config.Env, want) {
				t.Errorf("no %s in %s", want, o.config.Env)
			}
		}
		return
	}
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(o.tree["etc/ssl/certs/ca-certificates.crt"].Data) || pool.Equal(x509.NewCertPool()) {
		t.Error("the image's certificates cannot be read")
	}
}

// checkSBOM reads the document with SPDX's own library, and finds in it every module of the program.
func checkSBOM(t *testing.T, sbom []byte, program string) {
	t.Helper()
	doc, err := spdxjson.Read(bytes.NewReader(sbom))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	versions := map[string]string{}
	for _, p := range doc.Packages {
		versions[p.PackageName] = p.PackageVersion
		if p.PackageLicenseDeclared == "NOASSERTION" {
			t.Errorf("the licence of %s %s is not known", p.PackageName, p.PackageVersion)
		}
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range info.Deps {
		if versions[m.Path] != m.Version {
			t.Errorf("the SBOM has %s %q, the program %s", m.Path, versions[m.Path], m.Version)
		}
	}
}

// The same programs give the same archive, byte by byte.
func TestReproducible(t *testing.T) {
	f := images(t)
	second, err := f.build(t, "gpupilot-agent", "second")
	if err != nil {
		t.Fatal(err)
	}
	var content [2][]byte
	for i, file := range []string{filepath.Join(f.dir, "first", "gpupilot-agent.tar"), second} {
		if content[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(content[0], content[1]) {
		t.Error("two builds of the agent's image differ")
	}
}

// A program that is linked with what the image lacks is refused.
func TestLibrariesAreChecked(t *testing.T) {
	program, err := os.ReadFile(filepath.Join(bin, "gpupilot-agent"))
	if err != nil {
		t.Skipf("%v: make all", err)
	}
	if err := checkProgram(program, runtime.GOARCH, rootfs.Tree{}); err == nil || !strings.Contains(err.Error(), "libc.so.6") {
		t.Errorf("error without a C library: %v", err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if err := checkProgram(program, other, rootfs.Tree{}); err == nil || !strings.Contains(err.Error(), "not for "+other) {
		t.Errorf("error of another architecture's program: %v", err)
	}
}

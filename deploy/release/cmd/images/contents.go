// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpupilot/gpupilot/deploy/release/debian"
	"github.com/gpupilot/gpupilot/deploy/release/notice"
	"github.com/gpupilot/gpupilot/deploy/release/oci"
	"github.com/gpupilot/gpupilot/deploy/release/rootfs"
)

// program is one of the three programs, and what its image is like.
type program struct {
	name, description string
	licenses          string // of all that the image contains, an SPDX expression
	config            v1.Config
	maxBytes          int64 // compressed
	base              func(ctx context.Context, c config, arch string) (base, error)
}

// base is what an image has below its program.
type base struct {
	layer      oci.Layer
	components []notice.Component
}

const (
	megabyte = 1_000_000
	path     = "PATH=/usr/local/bin:/usr/bin"
	// Where GKE's device plugin and Docker's older NVIDIA runtime put the driver's libraries.
	driverPath = "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
	nonRoot    = "65532:65532" // as in the images of distroless, so that a policy that knows them knows ours
)

var programs = []program{
	{
		name: "gpupilot-agent", description: "GPU metrics of a node and its pods, under dcgm-exporter's names",
		licenses: "Apache-2.0 AND LGPL-2.1-or-later AND GPL-3.0-or-later WITH GCC-exception-3.1",
		maxBytes: 20 * megabyte, base: glibc,
		config: v1.Config{
			Entrypoint: []string{"/usr/bin/gpupilot-agent"}, WorkingDir: "/",
			// The kubelet's socket belongs to root. The agent needs no capability.
			User: "0:0", ExposedPorts: map[string]struct{}{"9400/tcp": {}},
			Env: []string{
				path, driverPath,
				// What NVIDIA's container toolkit gives the container: all GPUs, and NVML without CUDA.
				"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility",
			},
		},
	},
	{
		name: "gpupilot-controller", description: "Scales Kubernetes workloads by metrics of their GPUs and pods",
		licenses: "Apache-2.0 AND MPL-2.0", maxBytes: 40 * megabyte, base: static,
		config: v1.Config{
			Entrypoint: []string{"/usr/bin/gpupilot-controller"}, WorkingDir: "/", User: nonRoot, Env: []string{path},
			ExposedPorts: map[string]struct{}{"6443/tcp": {}, "8080/tcp": {}},
		},
	},
	{
		name: "gpupilot", description: "Explains scaling decisions, replays recorded load, runs scenarios and loads GPUs",
		licenses: "Apache-2.0 AND MPL-2.0 AND LGPL-2.1-or-later AND GPL-3.0-or-later WITH GCC-exception-3.1",
		// The program is static; load gpu starts a part of it that loads NVIDIA's driver library.
		maxBytes: 40 * megabyte, base: both,
		config: v1.Config{
			Entrypoint: []string{"/usr/bin/gpupilot"}, WorkingDir: "/", User: nonRoot,
			Env: []string{path, driverPath, "NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
		},
	},
}

// debianLicenses are those of the files that we take out of Debian's packages.
var debianLicenses = map[string]string{
	"libc6": "LGPL-2.1-or-later", "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1", "ca-certificates": "MPL-2.0",
	"base-files": "GPL-2.0-or-later",
}

// accounts are the users that the images know by name.
func accounts() rootfs.Tree {
	t := rootfs.Tree{}
	t.Add("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"))
	t.Add("etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n"))
	t.Add("etc/nsswitch.conf", 0o644, []byte("hosts: files dns\n"))
	return t
}

// static is the base of a program that needs no C library: certificates of the public authorities, for Prometheus
// behind HTTPS.
func static(ctx context.Context, c config, arch string) (base, error) {
	packages, err := c.packages.Get(ctx, arch, "ca-certificates")
	if err != nil {
		return base{}, err
	}
	tree := accounts()
	certificates, err := packages[0].Files(ctx, func(name string) bool {
		return strings.HasPrefix(name, "usr/share/ca-certificates/mozilla/") && strings.HasSuffix(name, ".crt")
	})
	if err != nil {
		return base{}, err
	}
	var bundle bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(certificates)) {
		bundle.Write(bytes.TrimSpace(certificates[name].Data))
		bundle.WriteByte('\n')
	}
	tree.Add("etc/ssl/certs/ca-certificates.crt", 0o644, bundle.Bytes())
	components, err := record(ctx, tree, packages)
	return base{layer: oci.Layer{Comment: "certificates of Debian's ca-certificates", Files: tree}, components: components}, err
}

// glibcFiles are the C library, its loader and what NVIDIA's libraries, which the agent loads at run time, are linked
// with. glibc itself loads libgcc_s when a library of theirs ends or cancels a thread, and aborts the program where it
// is missing. libstdc++ is not here: NVIDIA links it statically.
var glibcFiles = regexp.MustCompile(`^usr/lib(64)?/([a-z0-9_]+-linux-gnu/)?(ld-linux.*\.so\.\d|lib(c|m|dl|pthread|rt)\.so\.\d|libgcc_s\.so\.1)$`)

// identityFiles tell NVIDIA's container toolkit where this system has its libraries, and scanners what it is.
var identityFiles = regexp.MustCompile(`^(etc/debian_version|(usr/lib|etc)/os-release|usr/share/common-licenses/(GPL-2|GPL-3|LGPL-2\.1))$`)

// glibc is the agent's base.
func glibc(ctx context.Context, c config, arch string) (base, error) {
	packages, err := c.packages.Get(ctx, arch, "libc6", "libgcc-s1", "base-files")
	if err != nil {
		return base{}, err
	}
	// The copyright of all packages of GCC is in one of them, which is named after the source: gcc-12-base.
	gcc, _, _ := strings.Cut(packages[1].Source, " ")
	copyright, err := c.packages.Get(ctx, arch, gcc+"-base")
	if err != nil {
		return base{}, err
	}
	packages = append(packages, copyright...)
	tree := accounts()
	tree.Link("lib", "usr/lib")
	tree.Link("lib64", "usr/lib64")
	tree.Dir("usr/lib64")
	for _, p := range packages {
		files, err := p.Files(ctx, func(name string) bool { return glibcFiles.MatchString(name) || identityFiles.MatchString(name) })
		if err != nil {
			return base{}, err
		}
		if err := tree.Merge(files); err != nil {
			return base{}, err
		}
	}
	// NVIDIA's container toolkit adds a file to this folder and runs ldconfig; without the folder it fails.
	tree.Dir("etc/ld.so.conf.d")
	tree.Add("etc/ld.so.conf", 0o644, []byte("include /etc/ld.so.conf.d/*.conf\n"))
	components, err := record(ctx, tree, packages)
	return base{layer: oci.Layer{Comment: "C library of Debian's libc6 and libgcc-s1", Files: tree}, components: components}, err
}

// both is the base of a static program that starts one with the C library.
func both(ctx context.Context, c config, arch string) (base, error) {
	certificates, err := static(ctx, c, arch)
	if err != nil {
		return base{}, err
	}
	library, err := glibc(ctx, c, arch)
	if err != nil {
		return base{}, err
	}
	library.layer.Comment += ", certificates of ca-certificates"
	library.components = append(library.components, certificates.components...)
	return library, library.layer.Files.Merge(certificates.layer.Files)
}

// record adds the packages' licences and descriptions to the tree, where scanners look for them, and returns them as
// components.
func record(ctx context.Context, tree rootfs.Tree, packages []debian.Package) ([]notice.Component, error) {
	var components []notice.Component
	for _, p := range packages {
		doc := "usr/share/doc/" + p.Name // of libgcc-s1 a link to gcc-12-base
		files, err := p.Files(ctx, func(name string) bool { return name == doc || name == doc+"/copyright" })
		if err != nil {
			return nil, err
		}
		if err := tree.Merge(files); err != nil {
			return nil, err
		}
		tree.Add("var/lib/dpkg/status.d/"+p.Name, 0o644, p.Control)
		components = append(components, notice.Component{
			Name: p.Name, Version: p.Version, License: cmp.Or(debianLicenses[p.Name], "GPL-3.0-or-later WITH GCC-exception-3.1"), SHA256: p.SHA256,
			PURL:   fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.Name, p.Version, p.Architecture),
			Source: "Debian package " + filepath.Base(p.File) + ", built from the source package " + p.Source,
		})
	}
	return components, nil
}

// programLayer is the program, its licences and its SBOM.
func (c config) programLayer(p program, arch string, b base) (oci.Layer, error) {
	tree := rootfs.Tree{}
	file := filepath.Join(strings.ReplaceAll(c.programs, "ARCH", arch), p.name)
	data, err := os.ReadFile(file)
	if err != nil {
		return oci.Layer{}, fmt.Errorf("%w (make images builds it)", err)
	}
	if err := checkProgram(data, arch, b.layer.Files); err != nil {
		return oci.Layer{}, fmt.Errorf("%s: %w", file, err)
	}
	tree.Add("usr/bin/"+p.name, 0o755, data)
	license, err := os.ReadFile(filepath.Join(c.source, "LICENSE"))
	if err != nil {
		return oci.Layer{}, err
	}
	components, err := c.licences.Program(file)
	if err != nil {
		return oci.Layer{}, err
	}
	if p.name == "gpupilot-controller" {
		page, err := notice.Folder("uPlot", "", filepath.Join(c.source, "internal/serve/webui/static"))
		if err != nil {
			return oci.Layer{}, err
		}
		page.License = "MIT"
		components = append(components, page)
	}
	notices := notice.Notices(p.name, components)
	notices = append(notices, systemNotices(b.components)...)
	sbom, err := notice.SPDX(notice.Subject{
		Name: p.name, Version: c.stamp.Version, PURL: fmt.Sprintf("pkg:oci/%s@%s?repository_url=%s/%s&arch=%s", p.name, c.stamp.Version, c.registry, p.name, arch),
		Created: c.stamp.Created, Components: slices.Concat(components, b.components),
	})
	if err != nil {
		return oci.Layer{}, err
	}
	doc := "usr/share/doc/" + p.name + "/"
	tree.Add(doc+"LICENSE", 0o644, license)
	tree.Add(doc+"THIRD_PARTY_NOTICES", 0o644, notices)
	tree.Add(doc+"sbom.spdx.json", 0o644, sbom)
	return oci.Layer{Comment: "the program, its licences and its SBOM", Files: tree}, nil
}

// systemNotices says where the licences and the source of Debian's files are, as their licences demand.
func systemNotices(components []notice.Component) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n%s\n\nThe image also contains files of these Debian packages, unchanged. Their licences are in /usr/share/doc\n"+
		"and /usr/share/common-licenses. Their source is at https://snapshot.debian.org/.\n\n", strings.Repeat("=", 100))
	for _, c := range components {
		fmt.Fprintf(&b, "%s %s (%s): %s\n", c.Name, c.Version, c.License, c.Source)
	}
	return b.Bytes()
}

// SPDX-License-Identifier: Apache-2.0

// Command packages writes gpupilot-agent as packages for Debian and Ubuntu (deb) and for Red Hat's and SUSE's
// distributions (rpm).
package main

import (
	"bytes"
	"context"
	"debug/elf"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
	"golang.org/x/mod/semver"

	"github.com/gpupilot/gpupilot/deploy/release/command"
	"github.com/gpupilot/gpupilot/deploy/release/notice"
	"github.com/gpupilot/gpupilot/deploy/release/stamp"
)

const agent = "gpupilot-agent"

var (
	//go:embed files/gpupilot-agent.service
	unit []byte
	//go:embed files/gpupilot-agent.default
	defaults []byte
	//go:embed files/postinstall.sh
	postInstall []byte
	//go:embed files/preremove.sh
	preRemove []byte
)

func main() { command.Main("packages", run) }

// config is what the flags say.
type config struct {
	source, programs, out string
	stamp                 stamp.Stamp
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var c config
	var architectures string
	flags := flag.NewFlagSet("packages", flag.ContinueOnError)
	flags.StringVar(&c.source, "source", "../..", "the repository")
	flags.StringVar(&c.programs, "programs", "../../bin/images/linux-ARCH", "folder of an architecture's programs")
	flags.StringVar(&c.out, "out", "../../bin/packages", "folder of the packages")
	flags.StringVar(&architectures, "arch", "amd64 arm64", "architectures, separated by spaces")
	c.stamp.Flags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := c.stamp.ReadTime(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return err
	}
	licences, err := notice.NewReader(ctx)
	if err != nil {
		return err
	}
	for _, arch := range strings.Fields(architectures) {
		if err := c.write(arch, licences, out); err != nil {
			return fmt.Errorf("packages for %s: %w", arch, err)
		}
	}
	return nil
}

// write writes both packages of an architecture and prints their names.
func (c config) write(arch string, licences notice.Reader, out io.Writer) error {
	staged, err := os.MkdirTemp("", "packages-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(staged) }()
	program := filepath.Join(strings.ReplaceAll(c.programs, "ARCH", arch), agent)
	glibc, err := neededGlibc(program)
	if err != nil {
		return err
	}
	base, err := c.info(arch, program, staged, licences)
	if err != nil {
		return err
	}
	for _, p := range []struct {
		packager interface {
			nfpm.Packager
			nfpm.PackagerWithExtension
		}
		depends string
	}{{deb.Default, "libc6 (>= " + glibc + ")"}, {rpm.DefaultRPM, "glibc >= " + glibc}} {
		info := *base
		info.Depends = []string{p.depends}
		info = *nfpm.WithDefaults(&info)
		if err := nfpm.PrepareForPackager(&info, p.packager.ConventionalExtension()[1:]); err != nil {
			return err
		}
		var content bytes.Buffer
		if err := p.packager.Package(&info, &content); err != nil {
			return err
		}
		name := p.packager.ConventionalFileName(&info)
		if err := os.WriteFile(filepath.Join(c.out, name), content.Bytes(), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\t%.1f MB\n", name, float64(content.Len())/1e6)
	}
	return nil
}

// info describes the package. Files that are made here are staged in a folder.
func (c config) info(arch, program, staged string, licences notice.Reader) (*nfpm.Info, error) {
	license, err := os.ReadFile(filepath.Join(c.source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	components, err := licences.Program(program)
	if err != nil {
		return nil, err
	}
	sbom, err := notice.SPDX(notice.Subject{
		Name: agent, Version: c.stamp.Version, PURL: "pkg:generic/" + agent + "@" + c.stamp.Version, Created: c.stamp.Created, Components: components,
	})
	if err != nil {
		return nil, err
	}
	copyright := fmt.Appendf(nil, "GPUPilot is licensed under the Apache License 2.0:\n\n%s\n%s", license, notice.Notices(agent, components))
	doc := "/usr/share/doc/" + agent + "/"
	var contents files.Contents
	for _, f := range []struct {
		name, kind string
		data       []byte
	}{
		{"/usr/lib/systemd/system/" + agent + ".service", "", unit},
		{"/etc/default/" + agent, files.TypeConfigNoReplace, defaults},
		{doc + "copyright", "", copyright},
		{doc + "sbom.spdx.json", "", sbom},
		{"postinstall", "script", postInstall},
		{"preremove", "script", preRemove},
	} {
		source := filepath.Join(staged, filepath.Base(f.name)+"."+f.kind)
		if err := os.WriteFile(source, f.data, 0o600); err != nil {
			return nil, err
		}
		if f.kind != "script" {
			contents = append(contents, c.content(source, f.name, f.kind, 0o644))
		}
	}
	contents = append(contents, c.content(program, "/usr/bin/"+agent, "", 0o755))
	return &nfpm.Info{
		Name: agent, Arch: arch, Platform: "linux", Version: c.stamp.PackageVersion(), VersionSchema: "none", Release: "1",
		Section: "admin", Priority: "optional", Maintainer: "The GPUPilot authors <maintainers@gpupilot.dev>", License: "Apache-2.0",
		Homepage: "https://github.com/gpupilot/gpupilot", MTime: c.stamp.Created, DisableGlobbing: true,
		Description: "GPU metrics for Prometheus\n Reads the node's NVIDIA GPUs through NVML or DCGM and serves them under\n dcgm-exporter's names.",
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts:  nfpm.Scripts{PostInstall: filepath.Join(staged, "postinstall.script"), PreRemove: filepath.Join(staged, "preremove.script")},
			Deb:      nfpm.Deb{Compression: "xz"},
			RPM:      nfpm.RPM{Summary: "GPU metrics for Prometheus", BuildHost: "gpupilot"},
		},
	}, nil
}

// content is a file of the package, which belongs to root.
func (c config) content(source, name, kind string, mode fs.FileMode) *files.Content {
	info := &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: c.stamp.Created}
	return &files.Content{Source: source, Destination: name, Type: kind, FileInfo: info}
}

// neededGlibc is the oldest version of the C library that has all that the program is linked with.
func neededGlibc(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("%w (make packages builds it)", err)
	}
	defer f.Close()
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return "", fmt.Errorf("symbol versions of %s: %w", program, err)
	}
	newest := ""
	for _, n := range needs {
		for _, v := range n.Needs {
			if version, ok := strings.CutPrefix(v.Dep, "GLIBC_"); ok && semver.Compare("v"+version, "v"+newest) > 0 {
				newest = version
			}
		}
	}
	if newest == "" {
		return "", fmt.Errorf("%s needs no symbol of the C library: it is not linked as it should be", program)
	}
	return newest, nil
}

// SPDX-License-Identifier: Apache-2.0

// Command archives writes the command-line tool as archives for Linux and macOS, their checksums, and a manifest for
// krew, the package manager of kubectl's plugins.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/gpupilot/gpupilot/deploy/release/command"
	"github.com/gpupilot/gpupilot/deploy/release/notice"
	"github.com/gpupilot/gpupilot/deploy/release/rootfs"
	"github.com/gpupilot/gpupilot/deploy/release/stamp"
)

const program = "gpupilot"

func main() { command.Main("archives", run) }

// archive is a written archive.
type archive struct {
	OS, Arch, File string
	SHA256         string // hexadecimal
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var s stamp.Stamp
	flags := flag.NewFlagSet("archives", flag.ContinueOnError)
	source := flags.String("source", "../..", "the repository")
	programs := flags.String("programs", "../../bin/archives/PLATFORM", "folder of a platform's program")
	dir := flags.String("out", "../../bin/archives", "folder of the archives")
	platforms := flags.String("platforms", "linux-amd64 linux-arm64 darwin-amd64 darwin-arm64", "platforms, separated by spaces")
	s.Flags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := s.ReadTime(); err != nil {
		return err
	}
	licences, err := notice.NewReader(ctx)
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(*source, "LICENSE"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	var archives []archive
	for _, platform := range strings.Fields(*platforms) {
		tree, err := content(filepath.Join(strings.ReplaceAll(*programs, "PLATFORM", platform), program), license, s, licences)
		if err != nil {
			return fmt.Errorf("archive for %s: %w", platform, err)
		}
		a, err := write(*dir, platform, tree, s)
		if err != nil {
			return fmt.Errorf("archive for %s: %w", platform, err)
		}
		archives = append(archives, a)
		fmt.Fprintf(out, "%s  %s\n", a.SHA256, a.File)
	}
	return finish(*dir, archives, s)
}

// content is what an archive has.
func content(file string, license []byte, s stamp.Stamp, licences notice.Reader) (rootfs.Tree, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w (make archives builds it)", err)
	}
	components, err := licences.Program(file)
	if err != nil {
		return nil, err
	}
	sbom, err := notice.SPDX(notice.Subject{
		Name: program, Version: s.Version, PURL: "pkg:generic/" + program + "@" + s.Version, Created: s.Created, Components: components,
	})
	if err != nil {
		return nil, err
	}
	tree := rootfs.Tree{}
	tree.Add(program, 0o755, data)
	tree.Add("LICENSE", 0o644, license)
	tree.Add("THIRD_PARTY_NOTICES", 0o644, notice.Notices(program, components))
	tree.Add("sbom.spdx.json", 0o644, sbom)
	return tree, nil
}

// write writes one archive: gpupilot_v0.1.0_linux_amd64.tar.gz.
func write(dir, platform string, tree rootfs.Tree, s stamp.Stamp) (archive, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	if err := tree.WriteTar(compressed, s.Created); err != nil {
		return archive{}, err
	}
	if err := compressed.Close(); err != nil {
		return archive{}, err
	}
	system, arch, _ := strings.Cut(platform, "-")
	sum := sha256.Sum256(out.Bytes())
	a := archive{OS: system, Arch: arch, File: fmt.Sprintf("%s_%s_%s_%s.tar.gz", program, s.Version, system, arch), SHA256: hex.EncodeToString(sum[:])}
	return a, os.WriteFile(filepath.Join(dir, a.File), out.Bytes(), 0o644)
}

var krew = template.Must(template.New("krew").Parse(`# SPDX-License-Identifier: Apache-2.0
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: gpupilot
spec:
  version: {{ .Version }}
  homepage: https://github.com/gpupilot/gpupilot
  shortDescription: Explain and replay GPU autoscaling
  description: |
    Shows why GPUPilot scaled a workload, and what would have to change for
    another decision. Replays recorded load with your own policy before you
    trust it, and runs scenarios as tests.
  platforms:
{{- range .Archives }}
  - selector:
      matchLabels:
        os: {{ .OS }}
        arch: {{ .Arch }}
    uri: https://github.com/gpupilot/gpupilot/releases/download/{{ $.Version }}/{{ .File }}
    sha256: {{ .SHA256 }}
    bin: gpupilot
    files:
    - from: gpupilot
      to: .
    - from: LICENSE
      to: .
    - from: THIRD_PARTY_NOTICES
      to: .
{{- end }}
`))

// finish writes the checksums, as sha256sum checks them, and krew's manifest.
func finish(dir string, archives []archive, s stamp.Stamp) error {
	var sums, manifest bytes.Buffer
	for _, a := range archives {
		fmt.Fprintf(&sums, "%s  %s\n", a.SHA256, a.File)
	}
	err := krew.Execute(&manifest, map[string]any{"Version": s.Version, "Archives": archives})
	if err != nil {
		return fmt.Errorf("krew's manifest: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), sums.Bytes(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "gpupilot.yaml"), manifest.Bytes(), 0o644)
}

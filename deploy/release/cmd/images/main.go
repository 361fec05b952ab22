// SPDX-License-Identifier: Apache-2.0

// Command images writes the OCI image archives of GPUPilot's programs, from built programs and Debian's packages. It
// needs no Docker, no root and no base image.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpupilot/gpupilot/deploy/release/command"
	"github.com/gpupilot/gpupilot/deploy/release/debian"
	"github.com/gpupilot/gpupilot/deploy/release/notice"
	"github.com/gpupilot/gpupilot/deploy/release/oci"
	"github.com/gpupilot/gpupilot/deploy/release/stamp"
)

func main() { command.Main("images", run) }

// config is what the flags say.
type config struct {
	out, source, registry string
	tag                   string
	stamp                 stamp.Stamp
	architectures         []string
	programs              string // folder pattern with ARCH
	packages              debian.Store
	licences              notice.Reader
	only                  string
}

func parse(ctx context.Context, args []string) (config, error) {
	var c config
	var arch, cache string
	fs := flag.NewFlagSet("images", flag.ContinueOnError)
	fs.StringVar(&c.source, "source", "../..", "the repository")
	fs.StringVar(&c.programs, "programs", "../../bin/images/linux-ARCH", "folder of an architecture's programs")
	fs.StringVar(&c.out, "out", "../../bin/images", "folder of the archives")
	fs.StringVar(&c.registry, "registry", "ghcr.io/gpupilot", "first part of the images' names")
	fs.StringVar(&c.tag, "tag", "", "the images' tag (default: the version)")
	c.stamp.Flags(fs)
	fs.StringVar(&arch, "arch", "amd64 arm64", "architectures, separated by spaces")
	fs.StringVar(&cache, "cache", "", "folder of downloaded packages (default: gpupilot/debian in the user's cache folder)")
	fs.StringVar(&c.only, "only", "", "write this image only, by its program's name")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	c.tag = cmp.Or(c.tag, c.stamp.Version)
	if c.architectures = strings.Fields(arch); len(c.architectures) == 0 {
		return c, errors.New("-arch is empty: name at least one architecture")
	}
	err := c.stamp.ReadTime()
	if err != nil {
		return c, err
	}
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return c, fmt.Errorf("%w: give -cache", err)
		}
		cache = filepath.Join(dir, "gpupilot", "debian")
	}
	if c.packages.Dir, err = filepath.Abs(cache); err != nil {
		return c, err
	}
	c.licences, err = notice.NewReader(ctx)
	return c, err
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(ctx, args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "IMAGE\tPLATFORM\tCOMPRESSED\tDIGEST")
	for _, p := range programs {
		if c.only != "" && c.only != p.name {
			continue
		}
		if err := c.write(ctx, p, table); err != nil {
			return fmt.Errorf("image %s: %w", p.name, err)
		}
	}
	return table.Flush()
}

// write writes the archive of one program and its lines of the table.
func (c config) write(ctx context.Context, p program, table io.Writer) error {
	labels := c.labels(p)
	built := make([]oci.Built, 0, len(c.architectures))
	for _, arch := range c.architectures {
		base, err := p.base(ctx, c, arch)
		if err != nil {
			return err
		}
		top, err := c.programLayer(p, arch, base)
		if err != nil {
			return err
		}
		config := p.config
		config.Labels = labels
		image, err := oci.Build(oci.Image{
			Architecture: arch, Layers: []oci.Layer{base.layer, top}, Config: config, Annotations: labels, Created: c.stamp.Created,
		})
		if err != nil {
			return err
		}
		if image.Compressed > p.maxBytes {
			return fmt.Errorf("%s has %d bytes compressed, more than the limit of %d", arch, image.Compressed, p.maxBytes)
		}
		built = append(built, image)
	}
	name := c.registry + "/" + p.name
	digest, err := oci.WriteArchive(filepath.Join(c.out, p.name+".tar"), name, c.tag, built, labels)
	if err != nil {
		return err
	}
	fmt.Fprintf(table, "%s:%s\tall\t\t%s\n", name, c.tag, digest)
	for _, b := range built {
		fmt.Fprintf(table, "\t%s\t%.1f MB\t%s\n", b.Platform.String(), float64(b.Compressed)/1e6, b.Digest)
	}
	return nil
}

// labels are OCI's predefined annotations. The image's config has them as labels, too, which Docker shows.
func (c config) labels(p program) map[string]string {
	const url = "https://github.com/gpupilot/gpupilot"
	return map[string]string{
		"org.opencontainers.image.title":         p.name,
		"org.opencontainers.image.description":   p.description,
		"org.opencontainers.image.version":       c.stamp.Version,
		"org.opencontainers.image.revision":      c.stamp.Revision,
		"org.opencontainers.image.created":       c.stamp.Created.Format(time.RFC3339),
		"org.opencontainers.image.source":        url,
		"org.opencontainers.image.url":           url,
		"org.opencontainers.image.documentation": url + "/tree/main/docs",
		"org.opencontainers.image.licenses":      p.licenses,
		"org.opencontainers.image.vendor":        "GPUPilot",
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package oci writes OCI image archives. The same input gives the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpupilot/gpupilot/deploy/release/rootfs"
)

// Image is one platform's image.
type Image struct {
	Architecture string // Go's name: "amd64", "arm64"; the system is Linux
	Layers       []Layer
	Config       v1.Config
	Annotations  map[string]string // of the manifest
	Created      time.Time         // of the image and of every file
}

// Layer is a set of files, and what they are in words, for the image's history.
type Layer struct {
	Comment string
	Files   rootfs.Tree
}

// Built is an image with its size.
type Built struct {
	v1.Image
	Platform   v1.Platform
	Digest     v1.Hash
	Compressed int64 // bytes that a pull transfers: the manifest, the config and the layers
}

// Build makes an image.
func Build(i Image) (Built, error) {
	platform := v1.Platform{OS: "linux", Architecture: i.Architecture}
	built := Built{Platform: platform}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: i.Architecture, Created: v1.Time{Time: i.Created.UTC()}, Config: i.Config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return built, err
	}
	for _, l := range i.Layers {
		layer, err := layer(l, i.Created)
		if err != nil {
			return built, err
		}
		img, err = mutate.Append(img, mutate.Addendum{
			Layer: layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: i.Created.UTC()}, CreatedBy: "make images", Comment: l.Comment},
		})
		if err != nil {
			return built, err
		}
	}
	built.Image = mutate.Annotations(img, i.Annotations).(v1.Image)
	if built.Digest, err = built.Image.Digest(); err != nil {
		return built, err
	}
	built.Compressed, err = size(built.Image)
	return built, err
}

func layer(l Layer, mtime time.Time) (v1.Layer, error) {
	var content bytes.Buffer
	if err := l.Files.WriteTar(&content, mtime); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(open,
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

func size(img v1.Image) (int64, error) {
	m, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	total, err := img.Size()
	if err != nil {
		return 0, err
	}
	total += m.Config.Size
	for _, l := range m.Layers {
		total += l.Size
	}
	return total, nil
}

// WriteArchive writes an OCI image layout as a tar archive to file. Its index has one entry, named name:version: the
// index of the images by platform. It returns that index's digest.
func WriteArchive(file, name, version string, images []Built, annotations map[string]string) (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.Image, Descriptor: v1.Descriptor{Platform: &i.Platform}})
	}
	index = mutate.Annotations(index, annotations).(v1.ImageIndex)
	digest, err := index.Digest()
	if err != nil {
		return digest, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return digest, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return digest, err
	}
	// containerd names an imported image by the first annotation. The second is OCI's own, which skopeo reads.
	names := map[string]string{"io.containerd.image.name": name + ":" + version, "org.opencontainers.image.ref.name": version}
	if err := at.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return digest, err
	}
	partial := file + ".partial"
	if err := archive(partial, dir); err != nil {
		return digest, fmt.Errorf("write %s: %w", file, err)
	}
	return digest, os.Rename(partial, file)
}

// archive writes the files below dir to a tar archive, sorted and without times.
func archive(file, dir string) error {
	files := map[string]string{}
	for _, pattern := range []string{"oci-layout", "index.json", "blobs/*/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, f := range found {
			name, err := filepath.Rel(dir, f)
			if err != nil {
				return err
			}
			files[filepath.ToSlash(name)] = f
		}
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	w := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return out.Close()
}

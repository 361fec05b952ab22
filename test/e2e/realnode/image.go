// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
)

// Media types of the OCI image specification, version 1.
const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor points to a blob of the image.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"` // bytes
	Annotations map[string]string `json:"annotations,omitempty"`
}

// manifest is an image manifest, or an index when it lists Manifests.
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

// WriteImage writes an OCI image archive to w, for `ctr images import`: an image whose only file and entry point is
// /payload, the static program given, under each of the names. The same input gives the same bytes.
func WriteImage(w io.Writer, program []byte, names ...string) error {
	layer, err := tarball([]file{{name: "payload", mode: 0o755, content: program}})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/payload"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return fmt.Errorf("encode image config: %w", err)
	}
	configAt := descriptor{MediaType: mediaConfig, Digest: digest(config), Size: len(config)}
	image, err := json.Marshal(manifest{
		SchemaVersion: 2, MediaType: mediaManifest, Config: &configAt,
		Layers: []descriptor{{MediaType: mediaLayer, Digest: digest(layer), Size: len(layer)}},
	})
	if err != nil {
		return fmt.Errorf("encode image manifest: %w", err)
	}
	index := manifest{SchemaVersion: 2, MediaType: mediaIndex}
	for _, name := range names {
		index.Manifests = append(index.Manifests, descriptor{
			MediaType: mediaManifest, Digest: digest(image), Size: len(image),
			Annotations: map[string]string{"io.containerd.image.name": name},
		})
	}
	indexBytes, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("encode image index: %w", err)
	}
	archive, err := tarball([]file{
		{name: "oci-layout", mode: 0o644, content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "index.json", mode: 0o644, content: indexBytes},
		blob(image), blob(config), blob(layer),
	})
	if err != nil {
		return err
	}
	if _, err := w.Write(archive); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

// file is one regular file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// blob is content under the name that the OCI image layout gives it.
func blob(content []byte) file {
	return file{name: "blobs/sha256/" + digest(content)[len("sha256:"):], mode: 0o644, content: content}
}

// digest is the OCI digest of content.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// tarball is an uncompressed archive of the files, without times and owners.
func tarball(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return out.Bytes(), nil
}

// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"regexp"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// redacted replaces what may be a secret.
const redacted = "REDACTED"

// secrets are texts that may be secrets, or may contain them.
var secrets = []struct {
	expr    *regexp.Regexp
	replace string
}{
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{5,}(\.[A-Za-z0-9_-]*)*`), redacted},                                                   // JSON web tokens
	{regexp.MustCompile(`://[^/@\s"\\]+@`), "://" + redacted + "@"},                                                             // a password in a URL
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}`), "${1} " + redacted},                                   // headers
	{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(-----END [A-Z ]*PRIVATE KEY-----)?`), redacted},                // keys
	{regexp.MustCompile(`(?i)((?:password|passwd|token|secret|api[_-]?key)[a-z_-]*\s*[=:]\s*)[^\s"',&\\]+`), "${1}" + redacted}, // settings
}

// redact replaces what may be a secret in a text.
func redact(b []byte) []byte {
	for _, s := range secrets {
		b = s.expr.ReplaceAll(b, []byte(s.replace))
	}
	return b
}

// Bundle writes a report and the objects that it is about as one archive for a bug report.
// Secrets are not read. Environment variables and arguments of agents, annotations and texts
// that look like secrets are left out.
func Bundle(out io.Writer, r *Report, f *Facts) error {
	z := gzip.NewWriter(out)
	t := tar.NewWriter(z)
	add := func(name string, v any) error {
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return err
		}
		b = redact(b)
		h := &tar.Header{Name: "gpupilot-doctor/" + name, Mode: 0o600, Size: int64(len(b)), ModTime: f.Now.Truncate(time.Second), Typeflag: tar.TypeReg}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err = t.Write(b)
		return err
	}
	for name, v := range map[string]any{
		"report.json": r, "gpuautoscalers.json": bareAutoscalers(f), "gpuexporters.json": bareExporters(f), "nodes.json": bareNodes(f), "view.json": f.View.Items,
	} {
		if err := add(name, v); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}

// WriteBundle writes the archive to a file that only its owner may read.
func WriteBundle(path string, r *Report, f *Facts) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := Bundle(file, r, f); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

func bareAutoscalers(f *Facts) []v1alpha1.GPUAutoscaler {
	out := make([]v1alpha1.GPUAutoscaler, 0, len(f.Autoscalers.Items))
	for i := range f.Autoscalers.Items {
		a := *f.Autoscalers.Items[i].DeepCopy()
		a.Annotations, a.ManagedFields, a.Status.Memory = nil, nil, nil
		out = append(out, a)
	}
	return out
}

func bareExporters(f *Facts) []v1alpha1.GPUExporter {
	out := make([]v1alpha1.GPUExporter, 0, len(f.Exporters.Items))
	for i := range f.Exporters.Items {
		e := *f.Exporters.Items[i].DeepCopy()
		e.Annotations, e.ManagedFields, e.Spec.PodAnnotations = nil, nil, nil
		for j := range e.Spec.Env {
			e.Spec.Env[j].Value = redacted
		}
		for j := range e.Spec.Args {
			e.Spec.Args[j] = redacted
		}
		out = append(out, e)
	}
	return out
}

// bareNode is what matters of a node.
type bareNode struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Allocatable map[string]int    `json:"allocatable"`
}

func bareNodes(f *Facts) []bareNode {
	out := []bareNode{}
	for i := range f.Nodes.Items {
		if n := &f.Nodes.Items[i]; n.hasGPUs() {
			out = append(out, bareNode{n.Metadata.Name, n.Metadata.Labels, gpusOf(n.Status.Allocatable)})
		}
	}
	return out
}

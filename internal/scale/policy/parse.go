// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Named is a compiled policy with the name of its object, or of its file if the
// object has none.
type Named struct {
	Compiled
	Name string
}

// Parse compiles the GPUAutoscalers of a YAML file, which are separated by ---.
// Unknown fields are errors.
func Parse(file string, b []byte) (out []Named, err error) {
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		var fields map[string]any
		if err := yaml.Unmarshal(doc, &fields); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(fields) == 0 {
			continue // only comments
		}
		if kind, _ := fields["kind"].(string); kind != "GPUAutoscaler" {
			return nil, fmt.Errorf("%s: kind %q is not GPUAutoscaler", file, kind)
		}
		var a v1alpha1.GPUAutoscaler
		if err := decode(doc, &a); err != nil {
			if errs := shapeErrors(fields["spec"], field.NewPath("spec")); len(errs) > 0 {
				err = errs.ToAggregate()
			}
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		c, err := Compile(&a)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, a.Name, err)
		}
		if a.Name == "" {
			a.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		}
		out = append(out, Named{c, a.Name})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: the file has no GPUAutoscaler", file)
	}
	return out, nil
}

// decode decodes one document in the same way as the API server. Its errors
// contain the paths of unknown fields.
func decode(doc []byte, into *v1alpha1.GPUAutoscaler) error {
	b, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	unknown, err := json.UnmarshalStrict(b, into)
	return errors.Join(append(unknown, err)...)
}

// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// ParseCollectors is the agent's parser of a collectors file. It returns the number of
// metrics, and an error for each skipped line.
type ParseCollectors func(csv string) (metrics int, invalid []error)

// errNoMetric is the error for a list without metrics, which the agent would not use.
var errNoMetric = errors.New("the list has no metric")

// checkCollectors returns why a list must not be used; nil if it may be. A line that
// the agent would skip is a mistake in the list, so the whole list is refused.
func checkCollectors(csv string, parse ParseCollectors) error {
	metrics, invalid := parse(csv)
	switch n := len(invalid); {
	case n == 1:
		return invalid[0]
	case n > 1:
		return fmt.Errorf("%w, and %d more lines", invalid[0], n-1)
	case metrics == 0:
		return errNoMetric
	}
	return nil
}

// collectorsOf returns the list that the spec selects. read reads a key of a ConfigMap
// in the agents' namespace.
func collectorsOf(e *v1alpha1.GPUExporter, defaults func(profile string) string, read func(name, key string) (string, error)) (string, error) {
	c := e.Spec.Collectors
	switch {
	case c == nil:
		return defaults(profileOf(e)), nil
	case c.ConfigMap == nil:
		return c.CSV, nil
	}
	return read(c.ConfigMap.Name, orDefault(c.ConfigMap.Key, "metrics"))
}

func profileOf(e *v1alpha1.GPUExporter) string { return orDefault(e.Spec.Profile, "4.8") }

func orDefault(s, otherwise string) string {
	if strings.TrimSpace(s) == "" {
		return otherwise
	}
	return s
}

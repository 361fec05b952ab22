// SPDX-License-Identifier: Apache-2.0

package podmonitor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/gpupilot/gpupilot/internal/base/regexpsize"
)

// The bounds of relabelings. They keep the work for one pod below a millisecond: a
// tenant's regular expressions are matched with values that the tenant chooses.
const (
	maxRelabelings  = 16  // of a PodMonitor
	maxSourceLabels = 16  // of a relabeling
	maxInstructions = 256 // of a regular expression
	maxText         = 256 // bytes of a pattern, a replacement, and of the values that a pattern is matched with
)

// relabeling is a PodMonitor's relabeling.
type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	Separator    *string  `json:"separator"`
	TargetLabel  string   `json:"targetLabel"`
	Regex        string   `json:"regex"`
	Modulus      uint64   `json:"modulus"`
	Replacement  *string  `json:"replacement"`
	Action       string   `json:"action"`
}

// step is one relabeling.
type step struct{ config *relabel.Config }

func parseRelabelings(in []relabeling) (out []step, err error) {
	if len(in) > maxRelabelings {
		return nil, fmt.Errorf("relabelings has %d entries, at most %d are supported", len(in), maxRelabelings)
	}
	for i := range in {
		c, err := in[i].parse()
		if err != nil {
			return nil, fmt.Errorf("relabelings[%d].%w", i, err)
		}
		out = append(out, step{c})
	}
	return out, nil
}

func (r *relabeling) parse() (*relabel.Config, error) {
	c := relabel.DefaultRelabelConfig
	texts := []string{r.TargetLabel, r.Regex}
	if r.Separator != nil {
		c.Separator = *r.Separator
		texts = append(texts, c.Separator)
	}
	if r.Replacement != nil {
		c.Replacement = *r.Replacement
		texts = append(texts, c.Replacement)
	}
	switch {
	case slices.ContainsFunc(texts, func(s string) bool { return len(s) > maxText }):
		return nil, fmt.Errorf("* has a text of more than %d bytes", maxText)
	case len(r.SourceLabels) > maxSourceLabels:
		return nil, fmt.Errorf("sourceLabels has %d labels, at most %d are supported", len(r.SourceLabels), maxSourceLabels)
	case regexpsize.Instructions(r.Regex) > maxInstructions:
		return nil, fmt.Errorf("regex is too complex: it must compile to at most %d instructions", maxInstructions)
	case isOfTarget(r.TargetLabel):
		return nil, fmt.Errorf("targetLabel is %s, which the controller sets: a target is a pod, at its own address", r.TargetLabel)
	}
	for _, name := range r.SourceLabels {
		c.SourceLabels = append(c.SourceLabels, model.LabelName(name))
	}
	if r.Regex != "" {
		re, err := relabel.NewRegexp(r.Regex)
		if err != nil {
			return nil, fmt.Errorf("regex: %w", err)
		}
		c.Regex = re
	}
	c.TargetLabel, c.Modulus = r.TargetLabel, r.Modulus
	if r.Action != "" {
		c.Action = relabel.Action(strings.ToLower(r.Action))
	}
	if !slices.Contains(actions, c.Action) {
		return nil, fmt.Errorf("action is %.32q, which is not known", r.Action)
	}
	if err := c.Validate(model.UTF8Validation); err != nil {
		return nil, fmt.Errorf("*: %w", err)
	}
	return &c, nil
}

var actions = []relabel.Action{
	relabel.Replace, relabel.Keep, relabel.Drop, relabel.HashMod, relabel.LabelMap, relabel.LabelDrop, relabel.LabelKeep,
	relabel.Lowercase, relabel.Uppercase, relabel.KeepEqual, relabel.DropEqual,
}

// isOfTarget reports whether a label is part of what is scraped, or says whose series
// these are. A relabeling must not set it.
func isOfTarget(name string) bool {
	switch name {
	case "namespace", "pod", "node", model.MetricNameLabel:
		return true
	}
	return strings.HasPrefix(name, "__param_") || slices.Contains([]string{
		model.AddressLabel, model.SchemeLabel, model.MetricsPathLabel, model.ScrapeIntervalLabel, model.ScrapeTimeoutLabel,
	}, name)
}

// apply applies the step to a target's labels. ok is false if the target is dropped.
func (s step) apply(b *labels.Builder) (ok bool, err error) {
	length := len(s.config.Separator) * max(len(s.config.SourceLabels)-1, 0)
	for _, name := range s.config.SourceLabels {
		length += len(b.Get(string(name)))
	}
	if length > maxText {
		return false, fmt.Errorf("the values of sourceLabels have %d bytes, at most %d are supported", length, maxText)
	}
	if !relabel.ProcessBuilder(b, s.config) {
		return false, nil
	}
	total, number := 0, 0
	b.Range(func(l labels.Label) {
		total += len(l.Name) + len(l.Value)
		number++
	})
	if total > maxWorkingBytes || number > maxWorkingLabels {
		return false, fmt.Errorf("relabelings result in more than %d labels or %d bytes", maxWorkingLabels, maxWorkingBytes)
	}
	return true, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/base/regularfile"
)

// yamlFile is dcgm-exporter's YAML configuration: version 1 of its 4.8.3, and
// version 2 of 4.8.4, which has collections where 1 has a collection.
type yamlFile struct {
	Version int `yaml:"version"`
	Metrics struct {
		File    string      `yaml:"file"`
		Fields  []yamlField `yaml:"fields"`
		Runtime *bool       `yaml:"enableExporterMetrics"`
	} `yaml:"metrics"`
	Collection *struct {
		Interval  string        `yaml:"interval"`
		Retention yamlRetention `yaml:"retention"`
		Groups    []struct {
			Name      string        `yaml:"name"`
			Interval  string        `yaml:"interval"`
			Fields    []string      `yaml:"fields"`
			Retention yamlRetention `yaml:"retention"`
		} `yaml:"watchGroups"`
	} `yaml:"collection"`
	Collections []struct {
		Name    string `yaml:"name"`
		Every   string `yaml:"every"`
		Metrics struct {
			Include []string `yaml:"include"`
		} `yaml:"metrics"`
		Sources yamlSources `yaml:"sources"`
	} `yaml:"collections"`
	Sources yamlSources `yaml:"sources"`
	Server  struct {
		MaxScrapes *int `yaml:"maxConcurrentScrapes"`
	} `yaml:"server"`
}

type yamlField struct {
	Name string `yaml:"name"`
	Type string `yaml:"prometheusType"`
	Help string `yaml:"help"`
}

type yamlRetention struct {
	Age     string `yaml:"maxAge"`
	Samples *int64 `yaml:"maxSamples"`
}

type yamlSources struct {
	DCGM struct {
		Watch *struct {
			Age     string `yaml:"maxKeepAge"`
			Samples *int64 `yaml:"maxKeepSamples"`
		} `yaml:"watch"`
		Detect struct {
			Enabled *bool  `yaml:"enabled"`
			Poll    string `yaml:"pollInterval"`
		} `yaml:"detectBindUnbind"`
	} `yaml:"dcgm"`
}

// parseYAML parses a file's text. An unknown key is an error, as with
// dcgm-exporter.
func parseYAML(text []byte) (*yamlFile, error) {
	var f yamlFile
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		return nil, err
	}
	return &f, f.check()
}

func (f *yamlFile) check() error {
	switch {
	case f.Version != 1 && f.Version != 2:
		return fmt.Errorf("version is %d: want 1 or 2", f.Version)
	case f.Version == 1 && (len(f.Collections) > 0 || f.Sources.DCGM.Watch != nil):
		return errors.New("collections and sources.dcgm.watch need version: 2")
	case f.Version == 2 && f.Collection != nil:
		return errors.New("collection is a key of version 1; version 2 has collections")
	case f.Metrics.File != "" && len(f.Metrics.Fields) > 0:
		return errors.New("metrics has file and fields: give only one of them")
	}
	for i, m := range f.Metrics.Fields {
		if strings.TrimSpace(m.Name) == "" || strings.TrimSpace(m.Type) == "" || strings.TrimSpace(m.Help) == "" {
			return fmt.Errorf("metrics.fields[%d]: name, prometheusType and help are required", i)
		}
	}
	_, err := f.interval()
	return err
}

// interval returns the shortest interval in the file; 0 without one. The agent
// collects everything at that interval, so that no value is older than
// requested.
func (f *yamlFile) interval() (time.Duration, error) {
	asked := map[string]string{}
	if c := f.Collection; c != nil {
		asked["collection.interval"] = c.Interval
		for _, g := range c.Groups {
			asked["the interval of watch group "+g.Name] = g.Interval
		}
	}
	for _, c := range f.Collections {
		asked["every of collection "+c.Name] = c.Every
	}
	var shortest time.Duration
	for what, s := range asked {
		if s == "" {
			continue
		}
		d, err := time.ParseDuration(strings.TrimSpace(s))
		if err != nil || d < time.Millisecond || d%time.Millisecond != 0 {
			return 0, fmt.Errorf("%s is %q: want a time in whole milliseconds, such as 30s", what, s)
		}
		if shortest == 0 || d < shortest {
			shortest = d
		}
	}
	return shortest, nil
}

// settings returns the flag values that the file sets, by flag name.
func (f *yamlFile) settings() map[string]string {
	s := map[string]string{}
	set := func(flag, value string) {
		if value != "" {
			s[flag] = value
		}
	}
	if d, _ := f.interval(); d > 0 { // parseYAML has checked it
		set("collect-interval", strconv.FormatInt(d.Milliseconds(), 10))
	}
	set("collectors", strings.TrimSpace(f.Metrics.File))
	if f.Metrics.Runtime != nil {
		set("enable-exporter-metrics", strconv.FormatBool(*f.Metrics.Runtime))
	}
	if f.Server.MaxScrapes != nil {
		set("max-concurrent-scrapes", strconv.Itoa(*f.Server.MaxScrapes))
	}
	if d := f.Sources.DCGM.Detect; d.Enabled != nil {
		set("enable-gpu-bind-unbind-watch", strconv.FormatBool(*d.Enabled))
	}
	set("gpu-bind-unbind-poll-interval", f.Sources.DCGM.Detect.Poll)
	if w := f.Sources.DCGM.Watch; w != nil {
		set("watch-max-keep-age", w.Age)
	}
	return s
}

// collectors returns the file's metrics.fields in the format of a collectors
// file; empty without them.
func (f *yamlFile) collectors() string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	for _, m := range f.Metrics.Fields {
		_ = w.Write([]string{m.Name, m.Type, m.Help}) // writing to a strings.Builder cannot fail
	}
	w.Flush()
	return b.String()
}

// inlineCollectors returns the collectors in the text of a configuration file.
func inlineCollectors(text []byte) (string, error) {
	f, err := parseYAML(text)
	if err != nil {
		return "", err
	}
	return f.collectors(), nil
}

// readFile applies the settings of --config-file to the flags that neither the
// command line nor the environment sets.
func (c *config) readFile(fs *pflag.FlagSet, options []flags.Option, getenv func(string) string) error {
	if c.configFile == "" {
		return nil
	}
	text, err := regularfile.New(regularfile.DefaultTimeout).Read(context.Background(), c.configFile, maxText)
	if err != nil {
		return fmt.Errorf("--config-file: %w", err)
	}
	f, err := parseYAML(text)
	if err != nil {
		return fmt.Errorf("--config-file %s: %w", c.configFile, err)
	}
	settings, given := f.settings(), map[string]bool{}
	for _, o := range options {
		given[o.Name] = fs.Lookup(o.Name).Changed || o.Env != "" && getenv(o.Env) != ""
		v, ok := settings[o.Name]
		if !ok || given[o.Name] {
			continue
		}
		flag := fs.Lookup(o.Name)
		if err := flag.Value.Set(v); err != nil {
			return fmt.Errorf("--config-file %s: invalid value %q for --%s: want %s", c.configFile, v, o.Name, flags.ValueKind(flag))
		}
		if err := c.verify(&o, fs, "--config-file "+c.configFile+": --"+o.Name); err != nil {
			return fmt.Errorf("--config-file %s: invalid value %q for --%s: %w", c.configFile, v, o.Name, err)
		}
	}
	c.intervalInFile = !given["collect-interval"]
	c.inline = len(f.Metrics.Fields) > 0 && !given["collectors"] && !given["configmap-data"]
	return nil
}

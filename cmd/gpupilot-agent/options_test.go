// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func parse(args string, env ...string) (*config, error) {
	vars := map[string]string{}
	for i := 0; i < len(env); i += 2 {
		vars[env[i]] = env[i+1]
	}
	c, _, err := parseConfig(strings.Fields(args), func(k string) string { return vars[k] })
	return c, err
}

func TestFlagsThenEnvironmentThenDefaults(t *testing.T) {
	f := func(args string, env []string, want func(*config)) {
		t.Helper()
		got, err := parse(args, env...)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			return
		}
		c := defaults()
		want(&c)
		if diff := cmp.Diff(c, *got, cmp.AllowUnexported(config{}, compat{}, labelFlags{}, processFlags{})); diff != "" {
			t.Errorf("%s %v (-want +got):\n%s", args, env, diff)
		}
	}
	f("", nil, func(*config) {})
	f("-f x.csv -a :1 -c 500 -k -d g:0 -n", nil, func(c *config) {
		c.collectors, c.address, c.intervalMillis, c.kubernetes, c.devices, c.noHostname = "x.csv", ":1", 500, true, "g:0", true
	})
	f("--collectors=x.csv --kubernetes=true --nvidia-resource-names a/b,c/d", nil, func(c *config) {
		c.collectors, c.kubernetes, c.resourceNames = "x.csv", true, []string{"a/b", "c/d"}
	})
	// As dcgm-exporter's parser: one dash or two, whatever the name's length.
	f("-collectors x.csv --f=y.csv -kubernetes --c 7000", nil, func(c *config) {
		c.collectors, c.kubernetes, c.intervalMillis = "y.csv", true, 7000
	})
	f("", []string{"DCGM_EXPORTER_INTERVAL", "2000", "DCGM_EXPORTER_KUBERNETES", "true", "NODE_NAME", "n1", "NVIDIA_RESOURCE_NAMES", "a/b,c/d"},
		func(c *config) {
			c.intervalMillis, c.kubernetes, c.nodeName, c.resourceNames = 2000, true, "n1", []string{"a/b", "c/d"}
		})
	f("-c 3000 --kubernetes=false", []string{"DCGM_EXPORTER_INTERVAL", "2000", "DCGM_EXPORTER_KUBERNETES", "true"},
		func(c *config) { c.intervalMillis = 3000 })
	f("", []string{"DCGM_EXPORTER_LISTEN", "", "GPUPILOT_BACKEND", "sim"}, func(c *config) { c.backend = "sim" })
}

// Each bad value is named with its flag or variable, and with what is allowed.
func TestBadValues(t *testing.T) {
	f := func(args string, env []string, wants ...string) {
		t.Helper()
		_, err := parse(args, env...)
		if err == nil {
			t.Errorf("%s %v was accepted", args, env)
			return
		}
		for _, w := range wants {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s %v: %q does not say %q", args, env, err, w)
			}
		}
	}
	f("--backend dcmg", nil, "--backend", `"dcmg"`, "auto, nvml, dcgm, sim")
	f("-c fast", nil, "--collect-interval", `"fast"`, "a whole number")
	f("-c 1", nil, "--collect-interval", `"1"`, "between 10 and 3600000")
	f("--kubernetes=perhaps", nil, "--kubernetes", `"perhaps"`, "true or false")
	f("-d h:0", nil, "--devices", `"h:0"`, "f, g, i or g+i")
	f("-a 9400", nil, "--address", `"9400"`, "host:port")
	f("--profile 3", nil, "--profile", `"3"`, "4.8, 4.8.2, 4.9, 1.x")
	f("--log-format xml", nil, "--log-format", `"xml"`, "text, json")
	f("--pod-resources-kubelet-socket=", nil, "--pod-resources-kubelet-socket", "must not be empty")
	f("--no-such-flag", nil, "no-such-flag")
	f("serve", nil, `"serve"`)
	f("", []string{"DCGM_EXPORTER_INTERVAL", "x"}, "DCGM_EXPORTER_INTERVAL", `"x"`, "a whole number")
	f("", []string{"GPUPILOT_BACKEND", "x"}, "GPUPILOT_BACKEND", `"x"`, "auto, nvml, dcgm, sim")
}

func TestTheFlagTable(t *testing.T) {
	c := defaults()
	names, aliases, envs := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, o := range c.options() {
		if names[o.name] || o.alias != "" && aliases[o.alias] || o.env != "" && envs[o.env] || o.help == "" {
			t.Errorf("--%s, -%s or %s is taken, or there is no help", o.name, o.alias, o.env)
		}
		names[o.name], aliases[o.alias], envs[o.env] = true, true, true
	}
}

var update = flag.Bool("update", false, "write the flag table in docs/agent.md")

// docs/agent.md has the flag table between two marks.
func TestTheFlagsAreDocumented(t *testing.T) {
	const (
		file  = "../../docs/agent.md"
		begin = "<!-- flags: written by go test ./cmd/gpupilot-agent -run Documented -update -->\n"
		end   = "<!-- end -->\n"
	)
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the marks of the flag table", file)
	}
	want := head + begin + flagTable() + end + tail
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(doc) {
		t.Errorf("%s has another flag table: go test ./cmd/gpupilot-agent -run Documented -update", file)
	}
}

func flagTable() string {
	var b strings.Builder
	b.WriteString("| flag | variable | default | meaning |\n|---|---|---|---|\n")
	c := defaults()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, o := range c.options() {
		o.addTo(fs)
		name := "`--" + o.name + "`"
		if o.alias != "" {
			name = "`-" + o.alias + "`, " + name
		}
		def, env := fs.Lookup(o.name).DefValue, o.env
		if def == "false" || def == "[]" {
			def = ""
		}
		if def != "" {
			def = "`" + def + "`"
		}
		if env != "" {
			env = "`" + env + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, env, def, strings.ReplaceAll(o.help, "`", ""))
	}
	return b.String()
}

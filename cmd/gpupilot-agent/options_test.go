// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/test/flagtable"
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
		if diff := cmp.Diff(c, *got, cmp.AllowUnexported(config{}, compat{}, labelFlags{}, processFlags{}, probeFlags{})); diff != "" {
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
	f("--kubernetes=perhaps", nil, "--kubernetes", `"perhaps"`, "true or false")
	f("-d h:0", nil, "--devices", `"h:0"`, "f, g, i or g+i")
	f("-a 9400", nil, "--address", `"9400"`, "host:port")
	f("--profile 3", nil, "--profile", `"3"`, "4.8, 4.8.2, 4.9, 1.x")
	f("-r one:5555,two:5555", nil, "--remote-hostengine-info", `"one:5555,two:5555"`, "one host engine", "an agent for each")
	f("", []string{"DCGM_REMOTE_HOSTENGINE_INFO", "one two"}, "DCGM_REMOTE_HOSTENGINE_INFO", `"one two"`)
	f("--log-format xml", nil, "--log-format", `"xml"`, "text, json")
	f("--no-such-flag", nil, "no-such-flag")
	f("", []string{"DCGM_EXPORTER_INTERVAL", "x"}, "DCGM_EXPORTER_INTERVAL", `"x"`, "a whole number")
	f("", []string{"GPUPILOT_BACKEND", "x"}, "GPUPILOT_BACKEND", `"x"`, "auto, nvml, dcgm, sim")
}

// What dcgm-exporter 4.8.2 starts with starts here, too, with a warning that names
// the flag or variable, what was given and what is used.
func TestAdjustedValues(t *testing.T) {
	f := func(args string, env []string, holds func(*config) bool, want warning) {
		t.Helper()
		c, err := parse(args, env...)
		if err != nil || !holds(c) || len(c.adjusted) != 1 {
			t.Errorf("%s %v: %v, %+v", args, env, err, c)
			return
		}
		got := c.adjusted[0]
		if !strings.Contains(got.why, want.why) {
			t.Errorf("%s %v: %q does not say %q", args, env, got.why, want.why)
		}
		got.why, want.why = "", ""
		if got != want {
			t.Errorf("%s %v: %+v, want %+v", args, env, got, want)
		}
		out := &strings.Builder{}
		c.logAdjusted(slog.New(slog.NewTextHandler(out, nil)))
		if !strings.Contains(out.String(), "level=WARN") || !strings.Contains(out.String(), want.source) {
			t.Errorf("%s %v: the log says %q", args, env, out)
		}
	}
	interval := func(n int) func(*config) bool { return func(c *config) bool { return c.intervalMillis == n } }
	f("-c 1", nil, interval(10), warning{"--collect-interval", "1", "10", "between 10 and 3600000"})
	f("-c 0", nil, interval(10), warning{"--collect-interval", "0", "10", "between"})
	f("-c -5", nil, interval(10), warning{"--collect-interval", "-5", "10", "between"})
	f("-c 7200000", nil, interval(3_600_000), warning{"--collect-interval", "7200000", "3600000", "between"})
	f("", []string{"DCGM_EXPORTER_INTERVAL", "1"}, interval(10), warning{"DCGM_EXPORTER_INTERVAL", "1", "10", "between"})
	f("-x 0", nil, func(c *config) bool { return c.xidWindow == 1 }, warning{"--xid-count-window-size", "0", "1", "between 1 and 86400000"})
	f("--clock-events-count-window-size 86400001", nil, func(c *config) bool { return c.clockWindow == 86_400_000 },
		warning{"--clock-events-count-window-size", "86400001", "86400000", "between"})
	f("--kubernetes-gpu-id-type index", nil, func(c *config) bool { return c.gpuIDType == "index" },
		warning{"--kubernetes-gpu-id-type", "index", "uid and device-name", "both kinds are recognised"})
	f("-k --pod-resources-kubelet-socket=", nil, func(c *config) bool { return c.podResources == "" },
		warning{"--pod-resources-kubelet-socket", "", "", "devices have no pods"})
	f("--kubernetes-pod-label-allowlist-regex ^app$,( --kubernetes-enable-pod-labels", nil, func(c *config) bool { return len(c.allowlist()) == 1 },
		warning{"--kubernetes-pod-label-allowlist-regex", "[^app$,(]", "^app$", "missing closing )"})
	f("--kubernetes-pod-label-allowlist-regex (", nil, func(c *config) bool { return len(c.allowlist()) == 0 },
		warning{"--kubernetes-pod-label-allowlist-regex", "[(]", "", "all labels are added"})
}

// Arguments are ignored, and so are flags behind them.
func TestArguments(t *testing.T) {
	c, err := parse("-k true -c 500 --no-such-flag")
	if err != nil || !c.kubernetes || c.intervalMillis != defaults().intervalMillis {
		t.Fatalf("%v, %+v", err, c)
	}
	out := &strings.Builder{}
	c.logAdjusted(slog.New(slog.NewTextHandler(out, nil)))
	if !strings.Contains(out.String(), "true -c 500 --no-such-flag") {
		t.Errorf("the log says %q", out)
	}
}

func TestTheFlagTable(t *testing.T) {
	c := defaults()
	names, aliases, envs := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, o := range c.options() {
		if names[o.Name] || o.Alias != "" && aliases[o.Alias] || o.Env != "" && envs[o.Env] || o.Help == "" {
			t.Errorf("--%s, -%s or %s is taken, or there is no help", o.Name, o.Alias, o.Env)
		}
		names[o.Name], aliases[o.Alias], envs[o.Env] = true, true, true
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
	c := defaults()
	want := head + begin + flagtable.Markdown(c.options()) + end + tail
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(doc) {
		t.Errorf("%s has another flag table: go test ./cmd/gpupilot-agent -run Documented -update", file)
	}
}

// The admission policy lets a GPUExporter set each flag and each variable, but those that load a library, or name a file
// or a socket of others. A new flag has to be decided on.
func TestFlagsOfTheAdmissionPolicy(t *testing.T) {
	policy, err := os.ReadFile("../../deploy/admission/exporter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{
		"collectors": true, "config-file": true, "web-config-file": true, "nvml-library": true, "sim-push": true, // at one path only
		"dcgm-library": true, "configmap-data": true, "hpc-job-mapping-dir": true, "container-labels": true, "container-runtime-socket": true,
		"service-account": true, "pod-logs": true, "host-proc": true, "web-systemd-socket": true,
		"auth":         true, // token only
		"probe-result": true, "host-sys": true, "version": true, "help": true,
		// They have no effect.
		"fake-gpus": true, "enable-gpu-bind-unbind-watch": true, "gpu-bind-unbind-poll-interval": true, "watch-max-keep-age": true,
		"watch-max-keep-samples": true, "dump-enabled": true, "dump-directory": true, "dump-retention": true, "dump-compression": true,
	}
	probes := map[string]bool{"GPUPILOT_PROBE_RESULT": true, "GPUPILOT_HOST_SYS": true} // the probe's pod has nothing but itself
	c := defaults()
	for _, o := range c.options() {
		if allowed := strings.Contains(string(policy), "'--"+o.Name+"'"); allowed == refused[o.Name] {
			t.Errorf("the policy allows --%s: %v", o.Name, allowed)
		}
		want := !refused[o.Name] && o.Name != "node-name" || probes[o.Env]
		if allowed := strings.Contains(string(policy), "'"+o.Env+"'"); o.Env != "" && o.Env != "NODE_NAME" && allowed != want {
			t.Errorf("the policy allows the variable %s: %v", o.Env, allowed)
		}
	}
}

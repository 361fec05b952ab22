// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/test/flagtable"
)

func parse(t *testing.T, env map[string]string, args ...string) (*config, error) {
	t.Helper()
	c, _, err := parseConfig(args, func(k string) string { return env[k] })
	return c, err
}

func TestOptions(t *testing.T) {
	c, err := parse(t, map[string]string{"GPUPILOT_INTERVAL": "500ms", "GPUPILOT_SERVICE": "other"},
		"--service", "mine:8443", "--roles", "scrape,api")
	if err != nil {
		t.Fatal(err)
	}
	if c.interval != 500*time.Millisecond || c.service != "mine" || c.servicePort != 8443 {
		t.Errorf("interval %v, service %q, port %d", c.interval, c.service, c.servicePort)
	}
	if !c.has(roleAPI) || c.has(roleDecide) || c.namespace != defaultNamespace {
		t.Errorf("roles %v in namespace %q", c.roles, c.namespace)
	}
	if c, err = parse(t, nil); err != nil || c.pageAuth != pageAuthToken {
		t.Errorf("by default the page is for %q, %v", c.pageAuth, err)
	}
	if c, err = parse(t, nil); err != nil || !c.has(roleDecide) || c.window != 10*time.Minute || c.securePort != 6443 || c.service != "gpupilot-controller" || c.servicePort != 443 {
		t.Errorf("defaults: %+v, %v", c, err)
	}
}

// Agents are those of our own namespace where nothing else is said.
func TestAgentNamespace(t *testing.T) {
	f := func(want string, env map[string]string, args ...string) {
		t.Helper()
		c, err := parse(t, env, args...)
		if err != nil || c.agentsIn != want {
			t.Errorf("%v %v: agents in %q, %v; want %q", env, args, c.agentsIn, err, want)
		}
	}
	f(defaultNamespace, nil)
	f("ours", nil, "--namespace", "ours")
	f("theirs", nil, "--namespace", "ours", "--agent-namespace", "theirs")
	f("theirs", map[string]string{"GPUPILOT_AGENT_NAMESPACE": "theirs"})
}

// Without the flag, exporters are those of our own namespace and of the vendors' ones.
func TestDCGMNamespaces(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		c, err := parse(t, nil, args...)
		if err != nil || strings.Join(c.dcgmIn, " ") != want {
			t.Errorf("%v: dcgm-exporters in %q, %v; want %q", args, c.dcgmIn, err, want)
		}
	}
	f(defaultNamespace + " gpu-operator gke-managed-system kube-amd-gpu")
	f("ours gpu-operator gke-managed-system kube-amd-gpu", "--namespace", "ours")
	f("gpu-operator gke-managed-system kube-amd-gpu", "--namespace", "gpu-operator")
	f("a b", "--dcgm-namespaces", "a,b")
	f("a b", "--dcgm-namespaces", "a", "--dcgm-namespaces", "b")
}

// What is wrong names the flag or variable, the value and what is allowed.
// The default selector finds NVIDIA's exporters, GKE's managed one, and AMD's by the labels
// of its operator.
func TestExportersOfVendors(t *testing.T) {
	c, err := parse(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := kubeflags.Selectors(c.dcgm)
	if err != nil {
		t.Fatal(err)
	}
	f := func(want bool, pairs ...string) {
		t.Helper()
		set := labels.Set{}
		for i := 0; i < len(pairs); i += 2 {
			set[pairs[i]] = pairs[i+1]
		}
		if got := slices.ContainsFunc(list, func(s labels.Selector) bool { return s.Matches(set) }); got != want {
			t.Errorf("%v is an exporter: %v, want %v", set, got, want)
		}
	}
	f(true, "app.kubernetes.io/name", "dcgm-exporter")
	f(true, "app", "nvidia-dcgm-exporter")
	f(true, "app.kubernetes.io/name", "gke-managed-dcgm-exporter")
	f(true, "app.kubernetes.io/name", "metrics-exporter", "daemonset-name", "gpu-operator")
	f(false, "app.kubernetes.io/name", "metrics-exporter")
	f(false, "daemonset-name", "gpu-operator")
}

func TestBadOptions(t *testing.T) {
	f := func(env map[string]string, args []string, want ...string) {
		t.Helper()
		_, err := parse(t, env, args...)
		if err == nil {
			t.Errorf("%v %v: no error", env, args)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v %v: %q does not say %q", env, args, err, w)
			}
		}
	}
	f(nil, []string{"--interval", "1"}, "--interval", `"1"`, "such as 1.5s")
	f(nil, []string{"--interval", "1ms"}, "--interval", "from 50ms to 1h0m0s")
	f(nil, []string{"--window", "1s"}, "--window", "from 1m0s")
	f(map[string]string{"GPUPILOT_SECURE_PORT": "many"}, nil, "GPUPILOT_SECURE_PORT", `"many"`, "a whole number")
	f(nil, []string{"--secure-port", "70000"}, "--secure-port", "from 0 to 65535")
	f(nil, []string{"--roles", "scrape,guess"}, "--roles", `"guess"`, "all, scrape, api, query and decide")
	f(nil, []string{"--roles", "decide"}, "--roles", "add scrape")
	f(nil, []string{"--agent-namespace="}, "--agent-namespace is empty", "set the namespace")
	f(nil, []string{"--dcgm-namespaces", "a,*"}, "--dcgm-namespaces", `namespace "*"`)
	f(nil, []string{"--gpu-resources", "gpu"}, "--gpu-resources", "such as example.com/gpu")
	f(nil, []string{"--agent-selector", "a b"}, "--agent-selector", "label selector")
	f(nil, []string{"--page-auth", "basic"}, "--page-auth", `"basic"`, "token, none")
	f(nil, []string{"--gpu-price", "NaN"}, "--gpu-price", "want a value from 0")
	f(nil, []string{"--gpu-price", "-1"}, "--gpu-price", "want a value from 0")
	f(nil, []string{"--gpu-price", "H200=4.1,L4=free"}, "--gpu-price", `"L4=free"`)
	f(map[string]string{"GPUPILOT_GPU_PRICE": "H200=4.1,L4"}, nil, "GPUPILOT_GPU_PRICE", `"L4"`, "MODEL=USD")
	f(nil, []string{"--agent-scheme", "ftp"}, "--agent-scheme", "http, https")
	f(nil, []string{"--address", "8080"}, "--address", "host:port")
	f(nil, []string{"--service", "Not A Name"}, "--service", "lower case")
	f(nil, []string{"--service", "a:0"}, "--service", `port "0"`, "from 1 to 65535")
	f(nil, []string{"--service", "a:https"}, "--service", `port "https"`)
	f(nil, []string{"--prometheus-operator-selector", "a b"}, "--prometheus-operator-selector", "a b")
	f(nil, []string{"--log-level", "loud"}, "--log-level", "debug, info, warn, error")
	f(nil, []string{"--tls-cert-file", "x"}, "--tls-private-key-file", "both or neither")
	f(nil, []string{"--query-namespaces", "ml,team-*"}, "--query-namespaces", `"team-*"`, "patterns are not supported")
	f(map[string]string{"GPUPILOT_QUERY_NAMESPACES": "ML"}, nil, "GPUPILOT_QUERY_NAMESPACES", `"ML"`)
	f(nil, []string{"--query-namespace-label", `a="b"`}, "--query-namespace-label", "name of a label")
	f(nil, []string{"--query-namespace-label", "__name__"}, "--query-namespace-label", "name of a label")
	f(nil, []string{"--queries-per-namespace", "0"}, "--queries-per-namespace", "from 1 to 10000")
	f(nil, []string{"extra"}, `"extra"`)
	f(nil, []string{"--no-such-flag"}, "no-such-flag")
}

func TestHelpAndVersion(t *testing.T) {
	for flag, want := range map[string]string{"--help": "GPUPILOT_AGENT_SELECTOR", "--version": "gpupilot-controller " + version + " (commit "} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{flag}, &out); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %q", flag, err, out.String())
		}
	}
}

var update = flag.Bool("update", false, "write the table of flags into docs/controller-flags.md")

// The table in docs/controller-flags.md is that of the program.
func TestFlagsAreDocumented(t *testing.T) {
	const path, begin, end = "../../docs/controller-flags.md", "-update -->\n", "<!-- end of flags -->"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	c := defaults()
	want := head + begin + flagtable.Markdown(c.options()) + end + tail
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Errorf("%s is not up to date: go test ./cmd/gpupilot-controller -run Documented -update", path)
	}
}

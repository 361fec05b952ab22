// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	sigsyaml "sigs.k8s.io/yaml"
)

// helm lint --strict.
func TestLint(t *testing.T) {
	for name, vals := range valuesFiles(t) {
		lint := action.NewLint()
		lint.Strict, lint.Namespace = true, namespace
		result := lint.Run([]string{chartDir}, vals)
		for _, err := range result.Errors {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range result.Messages {
			if m.Severity > 1 { // above INFO
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// valuesFiles are the defaults and the files of deploy/chart/ci, in which each value is used.
func valuesFiles(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("values files %v, %v", files, err)
	}
	all := map[string]map[string]any{"values.yaml": {}}
	for _, file := range files {
		all[filepath.Base(file)] = values(t, string(readFile(t, file)))
	}
	return all
}

// Every value is used by the chart, and by some file of deploy/chart/ci.
func TestEveryValueIsTried(t *testing.T) {
	defaults := values(t, string(readFile(t, chartDir, "values.yaml")))
	tried := map[string]bool{}
	for _, vals := range valuesFiles(t) {
		for _, path := range leaves("", vals, defaults) {
			tried[path] = true
		}
	}
	for _, path := range leaves("", defaults, defaults) {
		if !tried[path] {
			t.Errorf("no file of deploy/chart/ci sets %s", path)
		}
	}
}

// leaves are the paths of vals, as deep as the defaults have them.
func leaves(prefix string, vals, defaults map[string]any) []string {
	var out []string
	for k, v := range vals {
		nested, isMap := v.(map[string]any)
		known, isKnown := defaults[k].(map[string]any)
		if isMap && isKnown && len(known) > 0 {
			out = append(out, leaves(prefix+k+".", nested, known)...)
			continue
		}
		out = append(out, prefix+k)
	}
	return out
}

func TestDefaults(t *testing.T) {
	o := mustRender(t, "")
	f := func(key, path string, want any) {
		t.Helper()
		if diff := cmp.Diff(want, o.get(t, key, path)); diff != "" {
			t.Errorf("%s %s: -want +got\n%s", key, path, diff)
		}
	}
	const deployment = "Deployment/gpupilot-controller"
	f(deployment, "spec|replicas", float64(2))
	f(deployment, "spec|template|spec|serviceAccountName", "gpupilot-controller")
	f(deployment, "spec|template|spec|securityContext|runAsNonRoot", true)
	f(deployment, "spec|template|spec|securityContext|seccompProfile|type", "RuntimeDefault")
	f(deployment, "spec|template|spec|topologySpreadConstraints|0|topologyKey", "kubernetes.io/hostname")
	const container = "spec|template|spec|containers|0|"
	f(deployment, container+"image", "ghcr.io/gpupilot/gpupilot-controller:v0.1.0")
	f(deployment, container+"securityContext", map[string]any{
		"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": map[string]any{"drop": []any{"ALL"}},
	})
	f("PodDisruptionBudget/gpupilot-controller", "spec|maxUnavailable", float64(1))
	f("Service/gpupilot-controller", "spec|ports|0|port", float64(443))
	f("Service/gpupilot-controller", "spec|ports|1|port", float64(8080))
	f("APIService/v1beta2.custom.metrics.k8s.io", "spec|caBundle", nil)
	f("GPUExporter/default", "spec", map[string]any{"imagePullPolicy": "IfNotPresent"})
	f(deployment, container+"env|0", map[string]any{"name": "GPUPILOT_AGENT_IMAGE", "value": "ghcr.io/gpupilot/gpupilot-agent:v0.1.0"})
	for k := range o {
		kind, _, _ := strings.Cut(k, "/")
		switch kind {
		case "ServiceMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy", "Secret", "Ingress", "HTTPRoute", "Certificate", "Issuer":
			t.Errorf("%s is rendered by default", k)
		}
	}
}

func TestValues(t *testing.T) {
	f := func(vals, key, path string, want any) {
		t.Helper()
		t.Run(vals, func(t *testing.T) {
			t.Helper()
			if diff := cmp.Diff(want, mustRender(t, vals).get(t, key, path)); diff != "" {
				t.Errorf("%s %s: -want +got\n%s", key, path, diff)
			}
		})
	}
	const deployment, container = "Deployment/gpupilot-controller", "spec|template|spec|containers|0|"
	f("image: {repository: registry.example:5000/controller, tag: v2}", deployment, container+"image", "registry.example:5000/controller:v2")
	digest := "sha256:" + strings.Repeat("a", 64)
	f("image: {digest: '"+digest+"'}", deployment, container+"image", "ghcr.io/gpupilot/gpupilot-controller@"+digest)
	f("global: {imageRegistry: 'registry.example:5000'}", deployment, container+"image", "registry.example:5000/gpupilot/gpupilot-controller:v0.1.0")
	f("{global: {imageRegistry: mirror}, image: {repository: 'a/b'}}", deployment, container+"image", "mirror/a/b:v0.1.0")
	f("global: {imageRegistry: 'registry.example/proxy'}", deployment, container+"env|0|value", "registry.example/proxy/gpupilot/gpupilot-agent:v0.1.0")
	f("{controller: {windowMemory: 1Gi}}", deployment, container+"args|3", "--window-memory=1Gi")
	f("{controller: {windowMemory: 8Gi}, resources: {limits: null}}", deployment, container+"args|3", "--window-memory=8Gi")
	f("controller: {dcgmNamespaces: [a, b]}", deployment, container+"args|5", "--dcgm-namespaces=a,b")
	f("extraArgs: [--interval=2s]", deployment, container+"args|5", "--interval=2s")
	f(`gpuPrice: "NVIDIA H200=4.1,L4=0.8,*=2"`, deployment, container+"args|5", "--gpu-price=NVIDIA H200=4.1,L4=0.8,*=2")
	f("gpuPrice: 2.5", deployment, container+"args|5", "--gpu-price=2.5")
	f("prometheus: {url: 'http://p:9090', httpConfig: {secretName: creds}}", deployment, container+"args|6",
		"--prometheus-http-config=/etc/gpupilot/prometheus/http-config.yaml")
	const volume = "history: {memory: 128Mi, volume: {persistentVolumeClaim: {claimName: minutes}}}"
	f(volume, deployment, container+"args|4", "--history-memory=128Mi")
	f(volume, deployment, container+"args|5", "--history-dir=/var/lib/gpupilot/history")
	f(volume, deployment, container+"volumeMounts|0", map[string]any{"name": "history", "mountPath": "/var/lib/gpupilot/history"})
	f(volume, deployment, "spec|template|spec|volumes|0", map[string]any{"name": "history", "persistentVolumeClaim": map[string]any{"claimName": "minutes"}})
	f("prometheus: {httpConfig: {secretName: creds}}", deployment, "spec|template|spec|volumes|0|secret|secretName", "creds")
	f("agents: {scheme: https}", deployment, container+"args|5", "--agent-scheme=https")
	f("agents: {auth: token}", deployment, container+"args|5", "--agent-token-file=/var/run/secrets/gpupilot.dev/agents/token")
	f("controller: {pageAuth: none, pageHosts: [gpu.example.com]}", deployment, container+"args|6",
		"--page-hosts=gpu.example.com,gpupilot-controller,gpupilot-controller."+namespace+",gpupilot-controller."+namespace+".svc")
	const ingress, host = "ingress: {enabled: true, hosts: [gpu.example.com]", "gpu.example.com"
	f("{controller: {pageAuth: none}, "+ingress+"}}", deployment, container+"args|6",
		"--page-hosts="+host+",gpupilot-controller,gpupilot-controller."+namespace+",gpupilot-controller."+namespace+".svc")
	f(ingress+"}", "Ingress/gpupilot-controller", "spec|tls", []any{map[string]any{"hosts": []any{host}}})
	f(ingress+", className: alb}", "Ingress/gpupilot-controller", "spec|ingressClassName", "alb")
	f(ingress+"}", "Ingress/gpupilot-controller", "spec|rules|0|http|paths|0|backend|service", map[string]any{"name": "gpupilot-controller", "port": map[string]any{"name": "http"}})
	f("httpRoute: {enabled: true, hostnames: ["+host+"], parentRefs: [{name: g, sectionName: https}]}", "HTTPRoute/gpupilot-controller", "spec", map[string]any{
		"hostnames": []any{host}, "parentRefs": []any{map[string]any{"name": "g", "sectionName": "https"}},
		"rules": []any{map[string]any{"backendRefs": []any{map[string]any{"name": "gpupilot-controller", "port": float64(8080)}}}},
	})
	f("ports: {api: 10250}", deployment, container+"args|5", "--secure-port=10250")
	f("ports: {api: 10250}", deployment, container+"ports|0|containerPort", float64(10250))
	f("ports: {api: 10250}", "Service/gpupilot-controller", "spec|ports|0", map[string]any{"name": "https", "port": float64(443), "targetPort": "https"})
	f("ports: {page: 18080}", deployment, container+"args|5", "--address=:18080")
	f("ports: {page: 18080}", deployment, container+"ports|1|containerPort", float64(18080))
	f("{ports: {keda: 19443}, keda: {enabled: true, auth: none}}", deployment, container+"args|5", "--keda-address=:19443")
	f("", deployment, "spec|template|spec|hostNetwork", nil)
	f("", deployment, "spec|strategy|rollingUpdate|maxUnavailable", float64(0))
	f("hostNetwork: {enabled: true}", deployment, "spec|template|spec|hostNetwork", true)
	f("hostNetwork: {enabled: true}", deployment, "spec|template|spec|dnsPolicy", "ClusterFirstWithHostNet")
	f("hostNetwork: {enabled: true}", deployment, "spec|strategy|rollingUpdate|maxUnavailable", float64(1)) // or no new replica finds free ports
	f("extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {b: '{{ c }}'}}]", "ConfigMap/a", "data|b", "{{ c }}")
	f("customMetrics: {enabled: false}", deployment, container+"args|5", "--register-apis=false")
	f("podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}", deployment, "spec|template|spec|securityContext",
		map[string]any{"runAsNonRoot": true, "seccompProfile": map[string]any{"type": "RuntimeDefault"}})
	f("serviceAccount: {annotations: {a: b}}", "ServiceAccount/gpupilot-controller", "metadata|annotations|a", "b")
	f("revisionHistoryLimit: 3", deployment, "spec|revisionHistoryLimit", float64(3))
	f("strategy: {type: Recreate}", deployment, "spec|strategy", map[string]any{"type": "Recreate"})
	f("readinessProbe: {periodSeconds: 5}", deployment, container+"readinessProbe", map[string]any{"httpGet": map[string]any{"path": "/readyz", "port": "http"}, "periodSeconds": float64(5)})
	f("", "Service/gpupilot-controller", "spec|ipFamilyPolicy", nil)
	f("service: {ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6, IPv4]}", "Service/gpupilot-controller", "spec|ipFamilyPolicy", "PreferDualStack")
	f("service: {ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6, IPv4]}", "Service/gpupilot-controller", "spec|ipFamilies", []any{"IPv6", "IPv4"})
	f("", "ClusterRole/gpupilot:editor", "metadata|labels|rbac.authorization.k8s.io/aggregate-to-edit", "true")
	for _, role := range []string{"gpupilot:editor", "gpupilot:viewer", "gpupilot:custom-metrics-reader", "gpupilot:external-metrics-reader"} {
		f("{rbac: {aggregateToDefaultRoles: false}, externalMetrics: {enabled: true}}", "ClusterRole/"+role, "metadata|labels", map[string]any{
			"app.kubernetes.io/name": "gpupilot", "app.kubernetes.io/instance": releaseName, "app.kubernetes.io/version": "v0.1.0",
			"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "gpupilot-0.1.0",
		})
	}
	f("gpuExporter: {spec: {runtimeClassName: nvidia, image: my/agent:1}}", "GPUExporter/default", "spec",
		map[string]any{"image": "my/agent:1", "imagePullPolicy": "IfNotPresent", "runtimeClassName": "nvidia"})
	f("imagePullSecrets: [{name: registry}]", "GPUExporter/default", "spec|imagePullSecrets|0|name", "registry")
	f("serviceMonitor: {enabled: true, additionalLabels: {release: prom}}", "GPUExporter/default", "spec|monitoring|serviceMonitor|labels|release", "prom")
	f("serviceMonitor: {enabled: true, additionalLabels: {release: prom}}", "ServiceMonitor/gpupilot-controller", "metadata|labels|release", "prom")
	const monitor = "serviceMonitor: {enabled: true, "
	f(monitor+"jobLabel: team}", "ServiceMonitor/gpupilot-controller", "spec|jobLabel", "team")
	const relabelings = monitor + "relabelings: [{targetLabel: cluster, replacement: a}]}"
	for object, path := range map[string]string{"ServiceMonitor/gpupilot-controller": "spec|endpoints|0", "GPUExporter/default": "spec|monitoring|serviceMonitor|endpoint"} {
		f(relabelings, object, path+"|relabelings", []any{map[string]any{"targetLabel": "cluster", "replacement": "a"}})
	}
	const credentials = "authorization: {credentials: {name: scrape, key: token}}}"
	secret := map[string]any{"credentials": map[string]any{"name": "scrape", "key": "token"}}
	f(monitor+credentials, "ServiceMonitor/gpupilot-controller", "spec|endpoints|0|authorization", secret)
	f(monitor+credentials, "ServiceMonitor/gpupilot-controller", "spec|endpoints|0|bearerTokenFile", nil)
	f(monitor+credentials, "GPUExporter/default", "spec|monitoring|serviceMonitor|endpoint", nil) // these agents want no token
	f(monitor+credentials+"\nagents: {auth: token}\nnetworkPolicy: {metricsFrom: [{podSelector: {}}]}", "GPUExporter/default", "spec|monitoring|serviceMonitor|endpoint|authorization", secret)
	const ca = "tlsConfig: {ca: {secret: {name: agent-ca, key: ca.crt}}}}"
	f(monitor+ca, "GPUExporter/default", "spec|monitoring|serviceMonitor|endpoint|tlsConfig|ca|secret|name", "agent-ca")
	f("{serviceMonitor: {enabled: true}, gpuExporter: {spec: {monitoring: {podMonitor: {}}}}}", "GPUExporter/default", "spec|monitoring",
		map[string]any{"podMonitor": map[string]any{}})
	f("controller: {scaleNamespaces: [team]}", "team/RoleBinding/gpupilot-controller:scale", "subjects|0|namespace", namespace)
	f("certManager: {enabled: true}", "APIService/v1beta2.custom.metrics.k8s.io", "metadata|annotations",
		map[string]any{"cert-manager.io/inject-ca-from": namespace + "/gpupilot-controller"})
	f("certManager: {enabled: true, issuerRef: {name: corp, kind: ClusterIssuer}}", "Certificate/gpupilot-controller", "spec|issuerRef",
		map[string]any{"name": "corp", "kind": "ClusterIssuer"})
	f("networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {team: sre}}}]}", "NetworkPolicy/gpupilot-agent",
		"spec|ingress|0|from|1|namespaceSelector|matchLabels|team", "sre")
	f("agents: {auth: token}", "Deployment/gpupilot-controller", "spec|template|spec|volumes|0|projected|sources|0|serviceAccountToken|audience", "agent.gpupilot.dev")
	f("agents: {auth: token}", "ClusterRoleBinding/gpupilot-agent:system:auth-delegator", "subjects|0|namespace", namespace)
	f("commonLabels: {team: sre}", "ClusterRole/gpupilot:viewer", "metadata|labels|team", "sre")
	f("commonLabels: {team: sre}", "ClusterRole/gpupilot:viewer", "metadata|labels|rbac.authorization.k8s.io/aggregate-to-view", "true")
}

// Objects that a value leaves out or adds.
func TestPresence(t *testing.T) {
	f := func(vals, key string, want bool) {
		t.Helper()
		if got := mustRender(t, vals)[key] != nil; got != want {
			t.Errorf("%s with %q: rendered %v, want %v", key, vals, got, want)
		}
	}
	f("", "ClusterRoleBinding/gpupilot-controller:scale", true)
	f("controller: {scaleNamespaces: [team]}", "ClusterRoleBinding/gpupilot-controller:scale", false)
	f("controller: {scaleNamespaces: [team]}", "ClusterRole/gpupilot-controller:scale", true)
	f("", "ClusterRole/gpupilot-controller:node-health", false)
	f("controller: {nodeHealth: true}", "ClusterRole/gpupilot-controller:node-health", true)
	f("", "ClusterRole/gpupilot-controller:rules", false)
	f("controller: {prometheusRules: true}", "ClusterRoleBinding/gpupilot-controller:rules", true)
	f("", "APIService/v1beta1.external.metrics.k8s.io", false)
	f("externalMetrics: {enabled: true}", "APIService/v1beta1.external.metrics.k8s.io", true)
	f("", "ClusterRole/gpupilot-controller:external-metrics", false)
	f("externalMetrics: {enabled: true}", "ClusterRole/gpupilot-controller:external-metrics", true)
	f("", "ClusterRoleBinding/gpupilot-controller:metrics-reader", false)
	f("agents: {auth: token}", "ClusterRoleBinding/gpupilot-controller:metrics-reader", true)
	f("", "NetworkPolicy/gpupilot-agent", false)
	f("agents: {auth: token}", "NetworkPolicy/gpupilot-agent", true)
	f("agents: {auth: token}", "NetworkPolicy/gpupilot-controller", false)
	f("viewer: {enabled: false}", "ServiceAccount/gpupilot-viewer", false)
	f("viewer: {enabled: false}", "ClusterRole/gpupilot:viewer", true)
	f("rbac: {create: false}", "ServiceAccount/gpupilot-controller", false)
	f("serviceAccount: {create: false}", "ServiceAccount/gpupilot-controller", false)
	f("serviceAccount: {name: robot}", "ServiceAccount/robot", true)
	f("admissionPolicies: {enabled: false}", "ValidatingAdmissionPolicy/gpupilot-controller-pods", false)
	f("customMetrics: {enabled: false}", "APIService/v1beta1.custom.metrics.k8s.io", false)
	f("gpuExporter: {enabled: false}", "GPUExporter/default", false)
	f("podDisruptionBudget: {enabled: false}", "PodDisruptionBudget/gpupilot-controller", false)
	f("certManager: {enabled: true, issuerRef: {name: corp}}", "Issuer/gpupilot-controller", false)
}

// An alert's threshold is the number at its expression's end.
func TestThresholds(t *testing.T) {
	expr := func(vals, name string) (out string) {
		for _, o := range mustRender(t, vals) {
			if o.GetKind() != "PrometheusRule" {
				continue
			}
			text, err := sigsyaml.Marshal(o.Object["spec"])
			if err != nil {
				t.Fatal(err)
			}
			var spec struct {
				Groups []struct {
					Rules []struct{ Alert, Expr string }
				}
			}
			if err := sigsyaml.Unmarshal(text, &spec); err != nil {
				t.Fatal(err)
			}
			for _, g := range spec.Groups {
				for _, r := range g.Rules {
					if r.Alert == name {
						out += r.Expr
					}
				}
			}
		}
		return out
	}
	f := func(name, was, threshold, want string) {
		t.Helper()
		before, after := expr("prometheusRule: {enabled: true}", name), expr("prometheusRule: {enabled: true, thresholds: {"+name+": "+threshold+"}}", name)
		if !strings.HasSuffix(before, was) || after != strings.ReplaceAll(before, was, want) {
			t.Errorf("%s with %s is\n%s\nbefore\n%s", name, threshold, after, before)
		}
	}
	f("GPUThermalThrottling", " > 0.1", "0.25", " > 0.25")
	f("GPUAllocatedIdle", " < 0.01", "0.05", " < 0.05")
	f("GPUAutoscalerFlapping", " >= 3", "10", " >= 10")
	f("GPUPilotObjectiveFastBurn", " > 14.4", "10", " > 10")
	if both := expr("prometheusRule: {enabled: true, thresholds: {GPUPilotObjectiveFastBurn: 10}}", "GPUPilotObjectiveFastBurn"); strings.Count(both, " > 10") != 2 {
		t.Errorf("the long and the short window have one threshold:\n%s", both)
	}
}

// Agents that require tokens let the controller in, and beside it only who is named.
func TestWhoReachesAgents(t *testing.T) {
	f := func(vals string, want ...any) {
		t.Helper()
		got := mustRender(t, vals).get(t, "NetworkPolicy/gpupilot-agent", "spec|ingress|0|from")
		controller := map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": "gpupilot", "app.kubernetes.io/component": "controller"}}}
		if diff := cmp.Diff(any(append([]any{controller}, want...)), got); diff != "" {
			t.Errorf("%s:\n%s", vals, diff)
		}
	}
	sre := map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"team": "sre"}}}
	f("networkPolicy: {enabled: true}", map[string]any{"namespaceSelector": map[string]any{}})
	f("{agents: {auth: token}}")
	f("{agents: {auth: token}, networkPolicy: {enabled: true}}")
	f("{agents: {auth: token}, networkPolicy: {metricsFrom: [{namespaceSelector: {matchLabels: {team: sre}}}]}, serviceMonitor: {enabled: true}}", sre)
	if _, _, err := render(values(t, "{agents: {auth: token}, serviceMonitor: {enabled: true}}")); err == nil || !strings.Contains(err.Error(), "networkPolicy.metricsFrom") {
		t.Errorf("a Prometheus that cannot reach the agents: %v", err)
	}
	// The controller may have Prometheus send its own token only then.
	for vals, want := range map[string]bool{"": false, "agents: {auth: token}": true} {
		b, err := sigsyaml.Marshal(mustRender(t, vals)["ValidatingAdmissionPolicy/gpupilot-controller-exporter-objects"].Object)
		if err != nil || strings.Contains(string(b), "serviceaccount/token") != want {
			t.Errorf("with %q the policy has the token's file: want %v (%v)", vals, want, err)
		}
	}
}

// No selector matches the controller in its node's network.
func TestHostNetworkReachesAgents(t *testing.T) {
	for vals, refused := range map[string]bool{
		"":                               false,
		"networkPolicy: {enabled: true}": true,
		"agents: {auth: token}":          true,
		"networkPolicy: {enabled: true, metricsFrom: [{ipBlock: {cidr: 10.0.0.0/16}}]}": false,
		"networkPolicy: {metricsFrom: [{podSelector: {}}]}\nagents: {auth: token}":      true,
	} {
		_, _, err := render(values(t, "hostNetwork: {enabled: true}\n"+vals))
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "networkPolicy.metricsFrom") {
			t.Errorf("%s: %v, want a refusal: %v", vals, err, refused)
		}
	}
}

// An alert is left out by its name, and all others stay.
func TestDisabledAlert(t *testing.T) {
	names := func(vals string) (out []string) {
		t.Helper()
		for key, o := range mustRender(t, vals) {
			if !strings.HasPrefix(key, "PrometheusRule/") {
				continue
			}
			var spec struct {
				Spec struct {
					Groups []struct {
						Rules []struct{ Alert, Record string }
					}
				}
			}
			text, err := sigsyaml.Marshal(o.Object)
			if err == nil {
				err = sigsyaml.Unmarshal(text, &spec)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range spec.Spec.Groups {
				for _, r := range g.Rules {
					out = append(out, r.Alert+r.Record)
				}
			}
		}
		slices.Sort(out)
		return out
	}
	all, rest := names("prometheusRule: {enabled: true}"), names("prometheusRule: {enabled: true, disabled: {GPULost: true, GPUMissing: false}}")
	if diff := cmp.Diff(slices.DeleteFunc(all, func(name string) bool { return name == "GPULost" }), rest); diff != "" || len(rest) < 20 {
		t.Errorf("-all but GPULost +rest\n%s", diff)
	}
}

// The policies about agents allow what the values ask for, and no more.
func TestAgentLimits(t *testing.T) {
	f := func(vals, variable, want string) {
		t.Helper()
		for _, policy := range []string{"daemonsets", "exporter-objects"} {
			list, ok := mustRender(t, vals).get(t, "ValidatingAdmissionPolicy/gpupilot-controller-"+policy, "spec|variables").([]any)
			if !ok {
				t.Fatal("the policy has no variables")
			}
			i := slices.IndexFunc(list, func(v any) bool { m, ok := v.(map[string]any); return ok && m["name"] == variable })
			if i < 0 {
				if policy == "daemonsets" {
					t.Errorf("the policy has no variable %s", variable)
				}
				continue
			}
			if got := fmt.Sprint(list[i].(map[string]any)["expression"]); !strings.HasSuffix(got, want) { //nolint:forcetypeassert // IndexFunc
				t.Errorf("with %q %s of %s is %s, want an end of %s", vals, variable, policy, got, want)
			}
		}
	}
	f("", "images", `'ghcr.io/gpupilot/gpupilot-agent'] + ["ghcr.io/gpupilot/gpupilot-agent"]`)
	f("gpuExporter: {image: {repository: r.example/a}, spec: {image: r.example/b:1}}", "images", ` + ["r.example/a","r.example/b:1"]`)
	f("admissionPolicies: {agentImages: [r.example/c]}", "images", ` + ["r.example/c","ghcr.io/gpupilot/gpupilot-agent"]`)
	f("", "hostPaths", `']`)
	f("gpuExporter: {spec: {driver: {root: /opt/nvidia, library: l}}}", "hostPaths", `'] + ["/opt/nvidia"]`)
	f("gpuExporter: {spec: {kubernetes: {kubeletPath: /data/kubelet/}}}", "hostPaths", `'] + ["/data/kubelet/pod-resources"]`)
	f("admissionPolicies: {agentHostPaths: [/opt/nvidia]}", "hostPaths", `'] + ["/opt/nvidia"]`)
	f("", "secrets", `['gpupilot-agent-web']`)
	f("admissionPolicies: {agentSecrets: [a]}", "secrets", `'] + ["a"]`)
	f("gpuExporter: {spec: {web: {secretName: w}, monitoring: {podMonitor: {endpoint: {basicAuth: {username: {name: u, key: k}, password: {name: u, key: p}}, tlsConfig: {ca: {secret: {name: c, key: k}}}}}}}}", "secrets", `'] + ["w","u","c"]`)
	f("serviceMonitor: {enabled: true, tlsConfig: {ca: {secret: {name: d, key: k}}}}", "secrets", `'] + ["d"]`)
	f("gpuExporter: {spec: {podLabels: {team: a}, podAnnotations: {x: z}}}", "podMetadata", `'] + ["team","x"]`)
	f("admissionPolicies: {agentPodMetadata: [team]}", "podMetadata", `'] + ["team"]`)
	f("gpuExporter: {spec: {args: [-n, '--x=<y>']}}", "args", `'] + ["-n","--x=\u003cy\u003e"]`)
	f("gpuExporter: {spec: {env: [{name: TZ, value: UTC}]}}", "env", `'] + ["TZ"]`)
	f("", "privileged", "false")
	f("gpuExporter: {spec: {privileged: true}}", "privileged", "true")
}

// The namespace is also in the policies' expressions: a policy for another account would limit nothing.
func TestNamespace(t *testing.T) {
	b, err := sigsyaml.Marshal(mustRender(t, "")["ValidatingAdmissionPolicy/gpupilot-controller-pods"].Object)
	if err != nil {
		t.Fatal(err)
	}
	if want := "system:serviceaccount:" + namespace + ":gpupilot-controller"; !strings.Contains(string(b), want) {
		t.Errorf("the policy does not match %s:\n%s", want, b)
	}
	for _, file := range []string{"admission", "rbac", "node-health", "external-metrics", "agent-auth"} {
		texts, err := filepath.Glob(filepath.Join(chartDir, "files", file, "*.yaml"))
		if err != nil || len(texts) == 0 {
			t.Fatalf("%s: %v %v", file, texts, err)
		}
		for _, text := range texts {
			// A namespace that is not written as a whole word would not be replaced.
			if b := string(readFile(t, text)); strings.Contains(b, "{{") {
				t.Errorf("%s has template actions, and is not rendered as a template", text)
			}
		}
	}
}

// An account with another name has every right, and every limit.
func TestNameOfTheAccount(t *testing.T) {
	const more = "{controller: {scaleNamespaces: [team], nodeHealth: true, prometheusRules: true}, externalMetrics: {enabled: true}, agents: {auth: token}"
	all := func(name string) string {
		var keys, text []string
		o := mustRender(t, more+", serviceAccount: {name: "+name+"}}")
		for key := range o {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			b, err := sigsyaml.Marshal(o[key].Object)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, string(b))
		}
		return strings.Join(text, "---\n")
	}
	const name = "account-of-gpupilot"
	ours := all(name)
	subjects := regexp.MustCompile(`(?m)kind: ServiceAccount\n\s+name: gpupilot-controller$|serviceaccount:[a-z-]+:gpupilot-controller`)
	if left := subjects.FindAllString(ours, -1); len(left) > 0 {
		t.Errorf("%d places name the account gpupilot-controller: %q", len(left), left[0])
	}
	if want, got := len(subjects.FindAllString(all("gpupilot-controller"), -1)), strings.Count(ours, name); got < want || want < 10 {
		t.Errorf("%d places name the account, want at least %d", got, want)
	}
}

// helm install --generate-name CHART installs into default.
func TestDefaultNamespaceIsRefused(t *testing.T) {
	chrt, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := renderInto("default", chrt, nil); err == nil || !strings.Contains(err.Error(), "--namespace gpupilot-system --create-namespace") {
		t.Errorf("the namespace default: %v", err)
	}
}

func TestSchemaRefuses(t *testing.T) {
	f := func(vals, want string) {
		t.Helper()
		_, _, err := render(values(t, vals))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", vals, err, want)
		}
	}
	f("replicas: 3", "replicas")
	f("replicaCount: two", "/replicaCount")
	f("image: {repository: 'a/b:v1'}", "/image/repository")
	f("image: {digest: latest}", "/image/digest")
	f("image: {pullPolicy: Sometimes}", "/image/pullPolicy")
	f("controller: {loglevel: debug}", "loglevel")
	f("controller: {logLevel: loud}", "/controller/logLevel")
	f("controller: {windowMemory: 512MB}", "/controller/windowMemory")
	f("history: {memory: 1MB}", "/history/memory")
	f("history: {dir: /data}", "dir")
	f("history: {volume: {name: x}}", "/history/volume")
	f("controller: {dcgmNamespaces: gpu-operator}", "/controller/dcgmNamespaces")
	f("controller: {pageAuth: basic}", "/controller/pageAuth")
	f("prometheus: {url: 'prometheus:9090'}", "/prometheus/url")
	f("agents: {scheme: grpc}", "/agents/scheme")
	f("agents: {auth: basic}", "/agents/auth")
	f("controller: {pageHosts: ['https://gpu.example.com']}", "/controller/pageHosts")
	f("extraArgs: [interval=2s]", "/extraArgs/0")
	f("gpuPrice: [2.5]", "/gpuPrice")
	f("imagePullSecrets: [registry]", "/imagePullSecrets/0")
	f("gpuExporter: {name: Default}", "/gpuExporter/name")
	f("gpuExporter: {runtimeClassName: nvidia}", "runtimeClassName") // it belongs into spec
	f("serviceAccount: {name: 'a''b'}", "/serviceAccount/name")      // it is part of policies' expressions
	f("service: {ipFamilies: [IPv5]}", "/service/ipFamilies/0")
	f("ports: {api: 0}", "/ports/api")
	f("ports: {page: 6443}", "ports.page is 6443")
	f("extraObjects: [{kind: ConfigMap}]", "/extraObjects/0")
	f("ingress: {enabled: true}", "ingress.hosts")
	f("ingress: {enabled: true, hosts: [a.example, b.example], tls: [{hosts: [a.example]}]}", "does not name b.example")
	f("ingress: {enabled: true, hosts: ['*.example']}", "/ingress/hosts/0")
	f("httpRoute: {enabled: true, hostnames: [a.example]}", "httpRoute.parentRefs")
	f("httpRoute: {enabled: true, hostnames: [a.example], parentRefs: [{name: a}]}", "sectionName") // every listener, also one without TLS
	f("prometheusRule: {enabled: true, disabled: {GPULots: true}}", "prometheusRule.disabled has GPULots")
	f("prometheusRule: {enabled: true, thresholds: {GPULots: 1}}", "prometheusRule.thresholds has GPULots")
	f("prometheusRule: {enabled: true, thresholds: {GPUAutoscalerAtMax: 1}}", "does not end with a threshold") // it compares two series
	f("prometheusRule: {thresholds: {GPUAllocatedIdle: low}}", "/prometheusRule/thresholds")
	f("rules: {default: true}", "/rules/default")
	f("rules: {custom: [{metricsQuery: x}]}", "/rules/custom/0")
	f("rules: {external: [{seriesQuery: x}]}", "rules.external needs externalMetrics.enabled")
	f("rules: {existing: a, custom: [{seriesQuery: x}]}", "rules.existing is a")
	f("ruleFiles: {team.yml: {groups: []}}", "team.yml")
	f("ruleFiles: {team.yaml: {rules: []}}", "/ruleFiles/team.yaml")
	f("networkPolicy: {metricsFrom: [{pods: {}}]}", "/networkPolicy/metricsFrom/0")
	f("serviceMonitor: {interval: 15}", "/serviceMonitor/interval")
	f("admissionPolicies: {agentImages: [registry.example/team/]}", "/admissionPolicies/agentImages/0") // a repository, not a prefix
	f("podDisruptionBudget: {minAvailable: 1}", "minAvailable")
	f("nodeSelector: {disk: 1}", "/nodeSelector/disk")
}

// The notes name commands that work with the values.
func TestNotes(t *testing.T) {
	f := func(vals, want string, has bool) {
		t.Helper()
		_, rel, err := render(values(t, vals))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(rel.Info.Notes, want); got != has {
			t.Errorf("with %q the notes have %q: %v, want %v\n%s", vals, want, got, has, rel.Info.Notes)
		}
	}
	f("", "kubectl -n "+namespace+" rollout status deployment/gpupilot-controller", true)
	f("", "kubectl get gpuexporter default", true)
	f("", "WARNING", false)
	f("gpuExporter: {enabled: false}", "kubectl get gpuexporter", false)
	f("viewer: {enabled: false}", "create token", false)
	f("", "docs/dcgm-exporter.md#profiling-metrics-before-hopper", true)
	f("gpuExporter: {enabled: false}", "#profiling-metrics-before-hopper", false)
	f("gpuExporter: {spec: {dcgm: {hostEngine: 'a:5555'}}}", "#profiling-metrics-before-hopper", false)
	f("controller: {pageAuth: none}", "WARNING: controller.pageAuth is none", true)
	f("ingress: {enabled: true, hosts: [gpu.example.com]}", "open https://gpu.example.com and paste the token", true)
	f("ingress: {enabled: true, hosts: [gpu.example.com]}", "port-forward", false)
	f("admissionPolicies: {enabled: false}", "WARNING: admissionPolicies.enabled is false", true)
}

// The chart's copies of the plain manifests are current.
func TestCopies(t *testing.T) {
	if diff := cmp.Diff(string(readFile(t, chartDir, "values.yaml")), string(readFile(t, chartDir, "files", "values.yaml"))); diff != "" {
		t.Errorf("deploy/chart/files/values.yaml is not deploy/chart/values.yaml: run make chart\n%s", diff)
	}
	for copied, original := range map[string]string{"crds": "crds", "files/rbac": "rbac", "files/admission": "admission", "files/node-health": "node-health", "files/external-metrics": "external-metrics", "files/agent-auth": "agent-auth"} {
		want, got := folder(t, root, "deploy", original), folder(t, chartDir, copied)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("deploy/chart/%s is not deploy/%s: run make chart\n%s", copied, original, diff)
		}
	}
}

// folder returns the contents of the files in a folder, by name.
func folder(t *testing.T, elem ...string) map[string]string {
	t.Helper()
	dir := filepath.Join(elem...)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(entries), err)
	}
	out := map[string]string{}
	for _, e := range entries {
		out[e.Name()] = string(readFile(t, dir, e.Name()))
	}
	return out
}

// The icon is the page's, in the chart itself: no address exists yet that would have it.
func TestIcon(t *testing.T) {
	chrt, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	text := readFile(t, root, "internal", "serve", "webui", "static", "icon.svg")
	if want := "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(text); chrt.Metadata.Icon != want {
		t.Errorf("the icon of Chart.yaml is not the page's icon.svg, want %s", want)
	}
}

// Artifact Hub's annotations name the images and kinds of this version.
func TestArtifactHub(t *testing.T) {
	chrt, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	if want := "v" + chrt.Metadata.Version; chrt.Metadata.AppVersion != want {
		t.Errorf("appVersion is %s, want %s, the tag of the images", chrt.Metadata.AppVersion, want)
	}
	var images []struct{ Name, Image string }
	if err := sigsyaml.Unmarshal([]byte(chrt.Metadata.Annotations["artifacthub.io/images"]), &images); err != nil {
		t.Fatal(err)
	}
	want := []string{"ghcr.io/gpupilot/gpupilot-controller", "ghcr.io/gpupilot/gpupilot-agent"}
	for i, name := range want {
		if i >= len(images) || images[i].Image != fmt.Sprintf("%s:%s", name, chrt.Metadata.AppVersion) {
			t.Errorf("artifacthub.io/images %v: want %s:%s", images, name, chrt.Metadata.AppVersion)
		}
	}
	var crds []struct{ Kind, Name string }
	if err := sigsyaml.Unmarshal([]byte(chrt.Metadata.Annotations["artifacthub.io/crds"]), &crds); err != nil {
		t.Fatal(err)
	}
	o := mustRender(t, "")
	for _, crd := range crds {
		if o["CustomResourceDefinition/"+crd.Name] == nil {
			t.Errorf("artifacthub.io/crds names %s, which the chart does not have", crd.Name)
		}
	}
	if n := len(chrt.CRDObjects()); n != len(crds) {
		t.Errorf("artifacthub.io/crds names %d CRDs, the chart has %d", len(crds), n)
	}
	var examples []map[string]any
	if err := sigsyaml.Unmarshal([]byte(chrt.Metadata.Annotations["artifacthub.io/crdsExamples"]), &examples); err != nil || len(examples) == 0 {
		t.Errorf("artifacthub.io/crdsExamples: %d, %v", len(examples), err)
	}
}

// helm test asks the controller and the API server, with our own image and without a right.
func TestHelmTest(t *testing.T) {
	f := func(vals string, want ...any) {
		t.Helper()
		_, rel, err := render(values(t, vals))
		if err != nil {
			t.Fatal(err)
		}
		if len(rel.Hooks) != 1 || fmt.Sprint(rel.Hooks[0].Events) != "[test]" {
			t.Fatalf("with %q the hooks are %v: none but the test runs, so that helm uninstall needs no image", vals, rel.Hooks)
		}
		o, err := decode([]byte(rel.Hooks[0].Manifest))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, o.get(t, "Pod/gpupilot-test", "spec|containers|0|args")); diff != "" {
			t.Errorf("with %q: -want +got\n%s", vals, diff)
		}
		if image := mustRender(t, vals).get(t, "Deployment/gpupilot-controller", "spec|template|spec|containers|0|image"); image != o.get(t, "Pod/gpupilot-test", "spec|containers|0|image") {
			t.Errorf("the test has another image than the controller, %v", image)
		}
		if account := o.get(t, "Pod/gpupilot-test", "spec|serviceAccountName"); account != nil {
			t.Errorf("the test has the rights of %v", account)
		}
	}
	const check = "--check=http://gpupilot-controller." + namespace + ":8080"
	f("", check, "--register-apis=true", "--external-metrics=false")
	f("{customMetrics: {enabled: false}, externalMetrics: {enabled: true}, ports: {page: 18080}}", check, "--register-apis=false", "--external-metrics=true")
}

// The values of docs/dcgm-exporter.md for a host engine render: the GPUExporter has its address and the image with libdcgm,
// and the policies let the controller run that image.
func TestValuesForAHostEngine(t *testing.T) {
	b, err := os.ReadFile(root + "/docs/dcgm-exporter.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "```yaml\ngpuExporter:\n")
	text, _, end := strings.Cut(text, "```")
	if !ok || !end {
		t.Fatal("docs/dcgm-exporter.md has no values of the chart")
	}
	o := mustRender(t, "gpuExporter:\n"+text)
	for object, want := range map[string]string{"GPUExporter/default": "dcgm:map[hostEngine:$(HOST_IP):5555]", "Deployment/gpupilot-controller": "value:registry.example/gpupilot-agent-dcgm:v0.1.0"} {
		if spec := fmt.Sprint(o.get(t, object, "spec")); !strings.Contains(spec, want) {
			t.Errorf("%s lacks %s: %s", object, want, spec)
		}
	}
	if policy := fmt.Sprint(o.get(t, "ValidatingAdmissionPolicy/gpupilot-controller-daemonsets", "spec|variables")); !strings.Contains(policy, "registry.example/gpupilot-agent-dcgm") {
		t.Errorf("the policy does not allow the image: %s", policy)
	}
}

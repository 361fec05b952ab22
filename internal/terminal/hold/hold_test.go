// SPDX-License-Identifier: Apache-2.0

package hold

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// server is an API server with one GPUAutoscaler. It applies merge patches of its spec.
type server struct {
	spec    map[string]any
	patches int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/apis/gpupilot.dev/v1alpha1/namespaces/llm/gpuautoscalers/chat" {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "gpuautoscalers \"other\" not found", "reason": "NotFound", "code": 404}`)
		return
	}
	spec := maps.Clone(s.spec)
	if r.Method == http.MethodPatch {
		s.patches++
		var patch struct {
			Spec struct {
				Override map[string]any `json:"override"`
			} `json:"spec"`
		}
		b, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(b, &patch); err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}
		delete(spec, "override")
		if o := patch.Spec.Override; o != nil {
			maps.DeleteFunc(o, func(_ string, v any) bool { return v == nil })
			spec["override"] = o
		}
		if r.URL.Query().Get("dryRun") == "" {
			s.spec = spec
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscaler", "metadata": map[string]any{"namespace": "llm", "name": "chat"}, "spec": spec,
	})
}

// run runs one of the commands against the server.
func run(t *testing.T, s *server, args ...string) (string, error) {
	t.Helper()
	api := httptest.NewServer(s)
	defer api.Close()
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: c, namespace: llm}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", api.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range Commands() {
		if cmd.Name() == args[0] {
			var out strings.Builder
			cmd.SetArgs(append(args[1:], "--kubeconfig", config))
			cmd.SetOut(&out)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			err := cmd.ExecuteContext(t.Context())
			return out.String(), err
		}
	}
	t.Fatalf("no command %s", args[0])
	return "", nil
}

func TestHoldAndResume(t *testing.T) {
	s := &server{spec: map[string]any{"maxReplicas": 8}}
	until := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Hour)
	end := until.Format("2006-01-02 15:04") + " UTC"
	f := func(want string, args ...string) {
		t.Helper()
		out, err := run(t, s, args...)
		if err != nil || out != want {
			t.Errorf("%q: %v\n%s want\n%s", args, err, out, want)
		}
	}
	at := until.Format(time.RFC3339)
	f("dry run, nothing was changed: llm/chat: 6 replicas, override until "+end+" (incident 4711)\n",
		"hold", "chat", "--replicas", "6", "--until", at, "--reason", "incident 4711", "--dry-run")
	if s.spec["override"] != nil {
		t.Fatalf("the dry run changed %v", s.spec)
	}
	f("llm/chat: 0 replicas, override until "+end+" (incident 4711)\n", "hold", "llm/chat", "--replicas", "0", "--until", at, "--reason", "incident 4711")
	f("llm/chat: no scale-down, override until "+end+" (x)\ninstead of: 0 replicas, override until "+end+" (incident 4711)\n",
		"hold", "chat", "--freeze", "Down", "--until", at, "--reason", "x")
	if o := s.spec["override"].(map[string]any); len(o) != 3 || o["freeze"] != "Down" || o["until"] != at {
		t.Errorf("override %v", o)
	}
	f("llm/chat: the override has ended: no scale-down, override until "+end+" (x)\n", "resume", "chat")
	f("llm/chat has no override\n", "resume", "chat")
	s.spec["actuation"] = "Advise"
	f("llm/chat: at most 3 replicas, override until "+end+" (x)\nits actuation is Advise: it reports this number and does not set it\n",
		"hold", "chat", "--max-replicas", "3", "--until", at, "--reason", "x")
}

func TestHoldRefuses(t *testing.T) {
	s := &server{spec: map[string]any{"maxReplicas": 8}}
	f := func(want string, args ...string) {
		t.Helper()
		if out, err := run(t, s, append([]string{"hold"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v %s, want %q", args, err, out, want)
		}
	}
	f("reason", "chat", "--replicas", "6", "--for", "4h")
	f("for until", "chat", "--replicas", "6", "--reason", "x")
	f("none of the others can be", "chat", "--replicas", "6", "--min-replicas", "3", "--for", "4h", "--reason", "x")
	f("at least one of the flags", "chat", "--for", "4h", "--reason", "x")
	f("not in the future", "chat", "--replicas", "6", "--for", "-1h", "--reason", "x")
	f("not in the future", "chat", "--replicas", "6", "--until", "2020-01-01T00:00:00Z", "--reason", "x")
	f("longer than 30 days", "chat", "--replicas", "6", "--for", "721h", "--reason", "x")
	f("want a time with its zone", "chat", "--replicas", "6", "--until", "18:00", "--reason", "x")
	f("not found", "other", "--replicas", "6", "--for", "4h", "--reason", "x")
	if s.patches > 0 {
		t.Errorf("%d patches", s.patches)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Object is a pod or a ConfigMap, as far as the agent looks at it.
type Object struct {
	Metadata Metadata          `json:"metadata"`
	Data     map[string]string `json:"data,omitempty"`
}

// Metadata is the metadata of an object.
type Metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels,omitempty"`
}

// APIServer answers lists, reads and watches of pods and ConfigMaps, over TLS
// and to its one token. It checks no more than that: what selectors choose is
// the real one's to test (test/e2e/apiwatch).
type APIServer struct {
	account string // the directory of the service account
	server  *httptest.Server

	mu      sync.Mutex
	objects map[string]map[string]Object // by collection and name
	history []change                     // the i-th made version i+1
	changed chan struct{}                // closed by the next change
}

// change is one event of a watch.
type change struct {
	collection string
	Type       string `json:"type"`
	Object     Object `json:"object"`
}

const token = "the-token"

// The collections.
const (
	pods       = "/api/v1/pods"
	configMaps = "/configmaps" // behind that of a namespace
)

// StartAPIServer starts one whose service account is written to dir.
func StartAPIServer(dir string) (*APIServer, error) {
	s := &APIServer{
		account: dir, changed: make(chan struct{}),
		objects: map[string]map[string]Object{pods: {}, configMaps: {}},
	}
	s.server = httptest.NewTLSServer(s)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600), os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600)); err != nil {
		s.server.Close()
		return nil, err
	}
	return s, nil
}

// Close stops the server.
func (s *APIServer) Close() {
	s.server.CloseClientConnections()
	s.server.Close()
}

// Args returns the agent's flags for this API server.
func (s *APIServer) Args() []string { return []string{"--service-account", s.account} }

// Env returns the agent's environment for this API server.
func (s *APIServer) Env() []string {
	host, port, _ := net.SplitHostPort(s.server.Listener.Addr().String()) // it is one
	return []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
}

// SetPod makes or changes a pod.
func (s *APIServer) SetPod(namespace, name string, labels map[string]string) {
	s.set(pods, Object{Metadata: Metadata{Name: name, Namespace: namespace, UID: namespace + "-" + name, Labels: labels}})
}

// SetConfigMap makes or changes a ConfigMap.
func (s *APIServer) SetConfigMap(namespace, name string, data map[string]string) {
	s.set(configMaps, Object{Metadata: Metadata{Name: name, Namespace: namespace}, Data: data})
}

func (s *APIServer) set(collection string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.Metadata.ResourceVersion = strconv.Itoa(len(s.history) + 1)
	typ, key := "ADDED", o.Metadata.Namespace+"/"+o.Metadata.Name
	if _, ok := s.objects[collection][key]; ok {
		typ = "MODIFIED"
	}
	s.objects[collection][key] = o
	s.history = append(s.history, change{collection, typ, o})
	close(s.changed)
	s.changed = make(chan struct{})
}

// ServeHTTP serves the API.
func (s *APIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	collection, name := pods, ""
	if _, after, ok := strings.Cut(r.URL.Path, configMaps); ok {
		collection, name = configMaps, strings.TrimPrefix(after, "/")
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Header.Get("Authorization") != "Bearer "+token:
		http.Error(w, `{"message":"who are you?"}`, http.StatusUnauthorized)
	case name != "":
		s.read(w, name)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, collection)
	default:
		s.list(w, collection)
	}
}

func (s *APIServer) read(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[configMaps] {
		if o.Metadata.Name == name {
			_ = json.NewEncoder(w).Encode(o) // whoever went away does not mind
			return
		}
	}
	http.Error(w, `{"message":"not found"}`, http.StatusNotFound)
}

func (s *APIServer) list(w http.ResponseWriter, collection string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := struct {
		Metadata Metadata `json:"metadata"`
		Items    []Object `json:"items"`
	}{Metadata: Metadata{ResourceVersion: strconv.Itoa(len(s.history))}, Items: []Object{}}
	for _, o := range s.objects[collection] {
		page.Items = append(page.Items, o)
	}
	_ = json.NewEncoder(w).Encode(page)
}

// watch sends the events since the requested version.
func (s *APIServer) watch(w http.ResponseWriter, r *http.Request, collection string) {
	since, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		http.Error(w, `{"message":"no such version"}`, http.StatusBadRequest)
		return
	}
	enc := json.NewEncoder(w)
	flush := http.NewResponseController(w).Flush
	for {
		s.mu.Lock()
		news, changed := s.history[since:], s.changed
		s.mu.Unlock()
		since += len(news)
		for _, c := range news {
			if c.collection == collection && enc.Encode(c) != nil {
				return
			}
		}
		if flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// refusing is a kubelet that answers with an error.
type refusing struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (refusing) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit: 100 % of\nit is used")
}

func TestErrorsOfTheKubelet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, refusing{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	c, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Allocations(t.Context())
	if err == nil || !strings.Contains(err.Error(), `status "8"`) || !strings.Contains(err.Error(), "rate limit: 100 % of\nit") {
		t.Errorf("the error is %v", err)
	}
}

// What is no answer of a kubelet's is an error that says what it is.
func TestStrangeAnswers(t *testing.T) {
	type answer struct {
		contentType, status, body string
	}
	f := func(a answer, want string) {
		t.Helper()
		socket := strange(t, a.contentType, a.status, a.body)
		c, err := New(socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Allocations(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", a, err, want)
		}
	}
	const grpc = "application/grpc"
	f(answer{"text/html", "0", "hello"}, "not gRPC")
	f(answer{grpc, "", "\x00\x00\x00\x00\x00"}, `status ""`)
	f(answer{grpc, "0", "\x00\x00"}, "ends after 2 bytes")
	f(answer{grpc, "0", "\x01\x00\x00\x00\x00"}, "compressed")
	f(answer{grpc, "0", "\x00\x00\x00\x00\x09hello"}, "5 bytes, its prefix says 9")
	f(answer{grpc, "0", "\x00\x00\x00\x00\x01\x0a"}, "malformed")
}

func TestTooLongAnAnswer(t *testing.T) {
	c := newCaller(strange(t, "application/grpc", "0", "\x00\x00\x00\x00\x0bhello world"))
	defer c.close()
	if got, err := c.call(t.Context(), list, 11); err != nil || string(got) != "hello world" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := c.call(t.Context(), list, 10); err == nil || !strings.Contains(err.Error(), "more than 10 bytes") {
		t.Errorf("the error is %v", err)
	}
}

// strange serves one answer, whatever is asked, and gives the socket's path.
func strange(t *testing.T, contentType, status, body string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, body)
		w.Header().Set("Grpc-Status", status)
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return socket
}

// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
)

// callOf calls limitCall about a namespace. The call takes some time.
func (s *Server) callOf(ctx context.Context, namespace string, takes time.Duration) error {
	_, err := s.limitCall(ctx, &pb.ScaledObjectRef{Namespace: namespace, Name: "x"}, &grpc.UnaryServerInfo{FullMethod: "/x/IsActive"},
		func(ctx context.Context, _ any) (any, error) {
			select {
			case <-time.After(takes):
			case <-ctx.Done():
			}
			return nil, nil
		})
	return err
}

func newUnserved(t *testing.T, clients Clients) *Server {
	t.Helper()
	s, err := New(Config{
		Certificate: func() (*tls.Certificate, error) { return nil, nil },
		Authorities: func() (*x509.CertPool, error) { return nil, nil },
		Clients:     clients,
	}, newFake())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Random tenants flood the scaler with slow calls. All calls of KEDA about another
// namespace are answered, and each waits for at most one turn of its own namespace.
func TestFloodsOfCalls(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			s := newUnserved(t, Clients{Anyone: true})
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i := range 1 + r.IntN(3) { // a fourth one would hold the rest of the slots
				for range r.IntN(1000) {
					takes := time.Duration(r.Int64N(int64(2 * callTimeout)))
					all.Go(func() {
						for ctx.Err() == nil && status.Code(s.callOf(ctx, fmt.Sprint("hostile", i), takes)) != codes.ResourceExhausted {
						}
					})
				}
			}
			synctest.Wait()
			var calls sync.WaitGroup
			const takes, turns = 10 * time.Millisecond, (100 + defaultCalls/4 - 1) / (defaultCalls / 4)
			for range 100 {
				calls.Go(func() {
					began := time.Now()
					if err := s.callOf(t.Context(), "quiet", takes); err != nil || time.Since(began) > turns*takes {
						t.Errorf("seed %d: a call took %s, want at most %s: %v", seed, time.Since(began), turns*takes, err)
					}
				})
			}
			calls.Wait()
			cancel()
			all.Wait()
		})
	}
}

// Who may not ask about a namespace does not use its share.
func TestForgedNamespacesPayNothing(t *testing.T) {
	s := newUnserved(t, Clients{Names: []string{"keda"}})
	if err := s.callOf(t.Context(), "victim", time.Hour); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
	if held, waiting := s.calls.Counts(); held+waiting != 0 {
		t.Errorf("%d calls run and %d wait", held, waiting)
	}
}

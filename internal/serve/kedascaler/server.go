// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/listen"
	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
)

// The bounds of the server.
const (
	maxBytes       = 64 << 10 // of a message in either direction
	maxHeaderBytes = 16 << 10
	// maxConcurrentCalls bounds the streams of one connection. KEDA uses one connection
	// for all ScaledObjects with the same address and credentials.
	maxConcurrentCalls = 4096
	callTimeout        = 2 * time.Second
	handshakeTimeout   = 5 * time.Second
	idleTimeout        = 10 * time.Minute
	pingEvery          = 30 * time.Second
	pingTimeout        = 10 * time.Second
	minPing            = 5 * time.Second // a client that sends pings more often is disconnected

	// maxWaiting bounds the calls of a namespace that wait for others. KEDA asks for many
	// ScaledObjects at the same time.
	maxWaiting = 512

	defaultCalls               = 64
	defaultStreams             = 8192
	defaultStreamsPerNamespace = 512
)

// Config holds the settings of a Server. Zero values mean the defaults.
type Config struct {
	// Certificate returns the serving certificate. It is called for each connection.
	Certificate func() (*tls.Certificate, error)
	// Authorities returns the authorities of client certificates. It is called for each
	// connection. Not used if Clients.Anyone is set.
	Authorities func() (*x509.CertPool, error)
	Clients     Clients

	Calls               int // concurrent calls, of which a namespace has a quarter; 64
	Streams             int // open streams; 8192
	StreamsPerNamespace int // 512

	// Report is called when the trigger of a ScaledObject cannot be used, with the reason;
	// may be nil. KEDA itself shows the reason only in its log.
	Report func(namespace, name, reason string)
	Log    *slog.Logger // nil discards
}

// Server is the scaler on its port.
type Server struct {
	cfg      Config
	signals  Signals
	grpc     *grpc.Server
	calls    *fair.Slots
	streams  streams
	stopping chan struct{}
	meters   *meters
}

var _ scaler = (*Server)(nil)

// New makes a server that reads signals. Run serves it.
func New(cfg Config, signals Signals) (*Server, error) {
	if cfg.Certificate == nil {
		return nil, errors.New("the KEDA scaler has no serving certificate")
	}
	if !cfg.Clients.Anyone && cfg.Authorities == nil {
		return nil, errors.New("the KEDA scaler has no authority of client certificates")
	}
	cfg.Calls = cmp.Or(cfg.Calls, defaultCalls)
	cfg.Streams = cmp.Or(cfg.Streams, defaultStreams)
	cfg.StreamsPerNamespace = cmp.Or(cfg.StreamsPerNamespace, defaultStreamsPerNamespace)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg, signals: signals, streams: streams{by: map[string]int{}}, stopping: make(chan struct{}),
		calls: fair.NewSlots(fair.Config{Slots: cfg.Calls, Share: max(1, cfg.Calls/4)}),
	}
	s.meters = newMeters(s)
	s.grpc = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(s.tls())),
		grpc.MaxRecvMsgSize(maxBytes), grpc.MaxSendMsgSize(maxBytes), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxConcurrentCalls), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.limitCall), grpc.StreamInterceptor(s.countStream),
	)
	s.grpc.RegisterService(Description(), s)
	return s, nil
}

// tls returns the TLS configuration. A connection gets the certificates of its time.
func (s *Server) tls() *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		cert, err := s.cfg.Certificate()
		if err != nil {
			return nil, err
		}
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*cert}}
		if s.cfg.Clients.Anyone {
			return c, nil
		}
		if c.ClientCAs, err = s.cfg.Authorities(); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
		return c, nil
	}
	return base
}

// Run serves on l until ctx is done. It closes l.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		close(s.stopping)
		s.grpc.Stop()
	})
	defer stop()
	s.cfg.Log.Info("KEDA scaler serving", "address", l.Addr().String())
	if err := s.grpc.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve the KEDA scaler: %w", err)
	}
	return nil
}

// maxConnections bounds the connections. KEDA's operator uses one for each address with its
// credentials.
const maxConnections = 256

// ListenAndRun serves on an address until ctx is done.
func (s *Server) ListenAndRun(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--keda-address %s: %w", address, err)
	}
	return s.Run(ctx, listen.New(listen.Limits{Connections: maxConnections}).Of(l))
}

// limitCall bounds the time and the number of concurrent calls, and counts them.
func (s *Server) limitCall(ctx context.Context, in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (out any, err error) {
	began := time.Now()
	defer func() { s.meters.observe(info.FullMethod, status.Code(err), time.Since(began)) }()
	ref, ok := in.(*pb.ScaledObjectRef)
	if r, isMetrics := in.(*pb.GetMetricsRequest); isMetrics {
		ref, ok = r.GetScaledObjectRef(), true
	}
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "a request of type %T", in)
	}
	ctx, done, err := s.begin(ctx, ref.GetNamespace())
	if err != nil {
		return nil, err
	}
	defer done()
	return handle(ctx, in)
}

// begin waits for the turn of a call about a namespace, which pays for it. Who may not ask
// about the namespace does not use its share. ctx ends when the call has no time left.
func (s *Server) begin(parent context.Context, namespace string) (ctx context.Context, done func(), err error) {
	if err := s.authorize(parent, namespace); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(parent, callTimeout)
	release, err := s.calls.Acquire(ctx, fair.Request{Payer: fair.Namespace(short(namespace)), MaxWaiting: maxWaiting})
	if err != nil {
		cancel()
		if errors.Is(err, context.Canceled) {
			return nil, nil, status.FromContextError(err).Err()
		}
		return nil, nil, status.Errorf(codes.ResourceExhausted, "other calls about namespace %s take all its time: %v", short(namespace), err)
	}
	return ctx, func() { release(); cancel() }, nil
}

func (s *Server) countStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	err := handle(srv, stream)
	s.meters.count(info.FullMethod, status.Code(err))
	return err
}

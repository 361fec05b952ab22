// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
)

// serviceName is the service's name in KEDA's contract.
const serviceName = "externalscaler.ExternalScaler"

// scaler is the service of KEDA's contract.
type scaler interface {
	IsActive(ctx context.Context, in *pb.ScaledObjectRef) (*pb.IsActiveResponse, error)
	GetMetricSpec(ctx context.Context, in *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error)
	GetMetrics(ctx context.Context, in *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error)
	StreamIsActive(in *pb.ScaledObjectRef, out grpc.ServerStreamingServer[pb.IsActiveResponse]) error
}

// Description describes the service for package grpc, which its generator would write.
func Description() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*scaler)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "IsActive", Handler: unary("IsActive", scaler.IsActive)},
			{MethodName: "GetMetricSpec", Handler: unary("GetMetricSpec", scaler.GetMetricSpec)},
			{MethodName: "GetMetrics", Handler: unary("GetMetrics", scaler.GetMetrics)},
		},
		Streams:  []grpc.StreamDesc{{StreamName: "StreamIsActive", Handler: streamIsActive, ServerStreams: true}},
		Metadata: "externalscaler.proto",
	}
}

// unary returns the handler of a method.
func unary[In, Out any](method string, call func(scaler, context.Context, *In) (*Out, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(In)
		if err := decode(in); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) { return call(srv.(scaler), ctx, req.(*In)) }
		if interceptor == nil {
			return handle(ctx, in)
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + serviceName + "/" + method}, handle)
	}
}

func streamIsActive(srv any, stream grpc.ServerStream) error {
	in := new(pb.ScaledObjectRef)
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	return srv.(scaler).StreamIsActive(in, &grpc.GenericServerStream[pb.ScaledObjectRef, pb.IsActiveResponse]{ServerStream: stream})
}

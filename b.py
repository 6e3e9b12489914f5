from gen import *
import random
# 20 bad lengths
for n,v in (("nan",float("nan")),("null",None),("str","2000"),("strms","2 ms"),("neg",-1),("zero",0)):
    o=base()
    for e in o:
        if e["cat"]=="kernel": e["dur"]=v if v!="2000" else str(e["dur"])
    put(f"20_dur_{n}.json",doc(o))
o=base(); i=0
for e in o:
    if e["cat"]=="kernel":
        i+=1
        if i%3==0: e["dur"]=None
put("21_dur_third_null.json",doc(o))
# device clock behind by 3 ms / 50 ms / 2 s
for ms in (3,50,2000):
    o=base()
    for e in o:
        if e["cat"]=="kernel": e["ts"]-=ms*1000
    put(f"22_clock_behind_{ms}ms.json",doc(o))
# order: idle 66.8 vs data 14.1, two disjoint. step 100: data 14 at start while device BUSY? & disjoint
def order(data_ms, idle_ms, over):
    o=[];c=1
    for s in range(4):
        b=1000.0+s*100000
        o.append(ev("user_annotation",f"ProfilerStep#{s+5}",b,99999.5))
        o.append(ev("user_annotation","enumerate(DataLoader)#_X.__next__",b+5,data_ms*1000-10))
        for k in range(10):
            t=b+data_ms*1000+100+k*1000
            o+= [ev("cpu_op","aten::mm",t-20,30,**{"External id":c}),ev("cuda_runtime","cudaLaunchKernel",t-15,6,correlation=c,**{"External id":c}),
                 ev("kernel","gemm",t,1000,pid=0,tid=7,correlation=c,device=0,stream=7,**{"External id":c})]; c+=1
        # then idle with a long item() sync & python
    return o
put("23_order_14_76.json",doc(order(14,76,0)))
put("23_order_60_30.json",doc(order(60,30,0)))
# order with 4 ranks
for r in range(4): put(f"24_order4/rank{r}.json",doc(order(14,76,0),rank=r,world=4))
# 25 DataParallel: 4 devices, dev0 60 %, others 20%
o=base()
for d in (1,2,3):
    c0=10000*d
    for e in base(device=d,marks=False,data=None,corr0=c0):
        if e["cat"]=="kernel":
            if "nccl" in e["name"]: continue
            if e["args"]["correlation"]%3: continue
        elif e["name"]=="cudaDeviceSynchronize": continue
        o.append(e)
put("25_dataparallel.json",doc(o))
# 26 TPU tensorboard
o=[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:TPU:0"}},{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"Steps"}},{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"XLA Modules"}},{"ph":"M","pid":1,"tid":3,"name":"thread_name","args":{"name":"XLA Ops"}},{"ph":"M","pid":701,"name":"process_name","args":{"name":"/host:CPU"}}]
for s in range(4):
    b=s*100000.
    o.append({"ph":"X","pid":1,"tid":1,"ts":b,"dur":100000,"name":str(s),"args":{"group_id":s}})
    o.append({"ph":"X","pid":1,"tid":2,"ts":b+20000,"dur":70000,"name":f"jit_train_step({s})","args":{"run_id":str(s)}})
    for k in range(30): o.append({"ph":"X","pid":1,"tid":3,"ts":b+20000+k*2000,"dur":2000,"name":f"fusion.{k}","args":{"hlo_category":"convolution fusion"}})
    o.append({"ph":"X","pid":1,"tid":3,"ts":b+80000,"dur":10000,"name":"all-reduce.1","args":{"hlo_category":"all-reduce"}})
    o.append({"ph":"X","pid":701,"tid":9,"ts":b,"dur":20000,"name":"$trainer.py:20 next_batch"})
put("26_tpu.trace.json.gz",{"displayTimeUnit":"ns","metadata":{"highres-ticks":True},"traceEvents":o},gz=True)
# 27 TF timeline
o=[{"ph":"M","name":"process_name","pid":0,"args":{"name":"/job:localhost/replica:0/task:0/device:GPU:0 Compute"}},{"ph":"M","name":"process_name","pid":1,"args":{"name":"/device:GPU:0/stream:all Compute"}}]
for k in range(50):
    o.append({"ph":"X","cat":"Op","name":"MatMul","pid":0,"tid":0,"ts":1e15+k*1000,"dur":800,"args":{"name":"dense/MatMul","op":"MatMul"}})
    o.append({"ph":"X","cat":"Op","name":"MatMul","pid":1,"tid":0,"ts":1e15+k*1000+100,"dur":700,"args":{"name":"dense/MatMul","op":"MatMul"}})
put("27_tf_timeline.json",{"traceEvents":o})
# 28 perfetto with counters, flows, sort index
o=base(); 
o+=[{"ph":"C","name":"GPU mem","pid":0,"ts":1000+i*100,"args":{"bytes":i}} for i in range(100)]
o+=[{"ph":"M","name":"process_sort_index","pid":0,"args":{"sort_index":5000}}]
o+=[{"ph":"s","id":i,"pid":100,"tid":100,"ts":2000+i,"cat":"ac2g","name":"ac2g"} for i in range(50)]+[{"ph":"f","id":i,"pid":0,"tid":7,"ts":3000+i,"cat":"ac2g","name":"ac2g","bp":"e"} for i in range(50)]
o+=[{"ph":"i","name":"Iteration Start: PyTorch Profiler","pid":"Traces","tid":"Trace OpenTelemetry","ts":1000,"s":"g"}]
put("28_flows_counters.json",doc(o,displayTimeUnit="ms"))
# 29 cuda graphs: one launch, many kernels
o=[]
for s in range(4):
    b=1000.+s*100000; c=s+1
    o.append(ev("user_annotation",f"ProfilerStep#{s+3}",b,99999.5))
    o.append(ev("cuda_runtime","cudaGraphLaunch",b+1000,500,correlation=c,**{"External id":c}))
    for k in range(40): o.append(ev("kernel",f"triton_poi_fused_add_mul_{k}" if k%2 else "nvjet_hsh_128x256",b+2000+k*2000,2000,pid=0,tid=7,correlation=c,device=0,stream=7,**{"External id":c,"graph id":3,"graph node id":k}))
    o.append(ev("cuda_runtime","cudaStreamSynchronize",b+1600,80400,correlation=c+1000))
put("29_cuda_graph.json",doc(o))
# 30 vLLM serving: prefill/decode, annotations; no ProfilerStep
o=[];c=1;t=1000.
random.seed(1)
for i in range(60):
    pre=i%15==0; L=40000 if pre else 10000
    o.append(ev("user_annotation",f"execute_{1 if pre else 32}_context_{1 if pre else 0}({2048 if pre else 0})_generation_{0 if pre else 32}({0 if pre else 32})",t,L-1000))
    n=L*0.7/20
    for k in range(20):
        o+=[ev("cpu_op","aten::mm",t+100+k*30-5,20,**{"External id":c}),ev("cuda_runtime","cudaLaunchKernel",t+100+k*30,6,correlation=c,**{"External id":c}),ev("kernel","nvjet_tst_64x8",t+200+k*n,n,pid=0,tid=7,correlation=c,device=0,stream=7,**{"External id":c})];c+=1
    o.append(ev("cuda_runtime","cudaEventSynchronize",t+800,L*0.7-500,correlation=c));c+=1
    t+=L
put("30_vllm.json",doc(o))
# 31 nested record_function steps + ProfilerStep
o=base()
for s in range(4):
    b=1000+s*100000
    for m in range(4): o.append(ev("user_annotation","train_step",b+20000+m*15000,14900)); o.append(ev("user_annotation",f"micro_batch_{m}",b+20000+m*15000,14000))
put("31_nested.json",doc(o))
# 32 merged nodes duplicate pid in one file: two hosts, same pid no rank
o=base()+base(t0=1000.0+3)
put("32_two_nodes_same_pid.json",{"traceEvents":o})
# 33 2^53 ns times
for nm,t0 in (("2p53",2**53+0.125),("epoch_us",1712195495505543.25),("neg",-5e6),("zero",0.0)):
    put(f"33_time_{nm}.json",doc(base(t0=t0)))
put("33_time_base.json",doc(base(),baseTimeNanoseconds=1712195495505543251))
txt=json.dumps(doc(base()))
put("34_cut_mid.json",txt[:len(txt)*2//3]); put("34_cut_mid.json.gz",gzip.compress(txt.encode())[:-4000])
import zipfile,lzma,tarfile,io
z=zipfile.ZipFile(W/"35.zip","w",zipfile.ZIP_DEFLATED)
for r in range(2): z.writestr(f"t/rank{r}.pt.trace.json",json.dumps(doc(base(),rank=r,world=2)))
z.close(); put("35.json.xz",lzma.compress(txt.encode()))
for r in range(4):
    put(f"36_mix/rank{r}.pt.trace.json",doc(base(t0=1000+(r==2)*0),rank=r,world=4))
put("36_mix/README.md","# hi"); put("36_mix/train.log","step 1 loss 3\n"*100); put("36_mix/.DS_Store",b"\0\0\0\1Bud1"+b"\0"*100); put("36_mix/nvidia-smi.csv","timestamp, name, utilization.gpu [%]\n2024/01/01 00:00:00.000, H100, 98 %\n"); put("36_mix/config.json",{"hidden_size":4096,"num_hidden_layers":32})
# worlds
for r in range(4): put(f"37_world4/rank{r}.json",doc(base(),rank=r,world=4))
put("37_world8_rank0.json",doc(base(),rank=0,world=8))
# FSDP2 prefetch: all gather on stream 22, reduce scatter 26 overlapped; with metadata
o=[];c=1
for s in range(4):
    b=1000.+s*100000
    o.append(ev("user_annotation",f"ProfilerStep#{s+3}",b,99999.5))
    def k(name,t,d,stream,**a):
        global c
        o.append(ev("cuda_runtime","cudaLaunchKernel" if "nccl" not in name else "cudaLaunchKernelExC",b+100+(c%100)*20,6,correlation=c,**{"External id":c}))
        o.append(ev("kernel",name,b+t,d,pid=0,tid=stream,correlation=c,device=0,stream=stream,**{"External id":c},**a)); c+=1
    G={"Process Group Name":"0","Process Group Description":"default_pg","Group size":8,"Process Group Ranks":"[0, 1, 2, 3, 4, 5, 6, 7]","dtype":"BFloat16"}
    k("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",5000,4000,22,**{"Collective name":"_allgather_base","In msg nelems":1000000,"Out msg nelems":8000000},**G)
    for l in range(8):
        k("gemm_fwd",9000+l*10000,10000,7)
        if l<7: k("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",9000+l*10000+1000,6000,22,**{"Collective name":"_allgather_base","In msg nelems":1000000,"Out msg nelems":8000000},**G)
    k("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",89000,6000,26,**{"Collective name":"_reduce_scatter_base","In msg nelems":8000000,"Out msg nelems":1000000},**G)
put("38_fsdp2.json",doc(o,rank=0,world=8))
